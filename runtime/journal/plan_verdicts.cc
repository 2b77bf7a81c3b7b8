#include "runtime/journal/plan_verdicts.h"

#include <cmath>

#include "graph/units.h"

namespace pipewright {
namespace {

std::string gain_text(const GenerationSummary& before, const GenerationSummary& after) {
  if (!(before.last_minibatch_seconds > 0) || !after.is_change()) return "";
  const double each = before.last_minibatch_seconds - after.minibatch_seconds;
  const double saved = each * static_cast<double>(after.minibatches) - after.drain_seconds -
                       after.move_seconds - after.start_seconds;
  return std::string(saved > 0 ? "; helped: " : "; did not help: ") +
         format_seconds(before.last_minibatch_seconds) + " -> " + format_seconds(after.minibatch_seconds) +
         " a minibatch, " + (saved > 0 ? "saved " : "lost ") + format_seconds(std::abs(saved));
}

}  // namespace

std::vector<std::string> plan_verdicts(const Summary& summary) {
  std::vector<std::string> lines;
  if (summary.generations.size() < 2) return lines;
  const GenerationSummary* before = nullptr;
  for (const GenerationSummary& each : summary.generations) {
    if (each.minibatches > 0 && each.minibatch_seconds > 0) {
      std::string line = "minibatches " + std::to_string(each.first_minibatch) + " to " +
                         std::to_string(each.first_minibatch + each.minibatches - 1) + ", plan " + each.plan +
                         ": " + format_seconds(each.minibatch_seconds) + " a minibatch";
      if (each.predicted_minibatch_seconds > 0)
        line += ", predicted " + format_seconds(each.predicted_minibatch_seconds);
      if (before) line += gain_text(*before, each);
      lines.push_back(line);
    }
    if (each.minibatches > 0) before = &each;
  }
  return lines;
}

}  // namespace pipewright

#include "runtime/job/freeze_policy.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "graph/limits.h"
#include "graph/nearest.h"

namespace pipewright {
namespace {

// "0.31 0.2 0.11", of the layers that are trained.
std::string words_of(const std::vector<double>& norms, int64_t frozen) {
  std::string text;
  for (size_t l = static_cast<size_t>(frozen); l < norms.size(); ++l) {
    char word[32];
    std::snprintf(word, sizeof word, "%s%.3g", text.empty() ? "" : " ", norms[l]);
    text += word;
  }
  return text;
}

bool parse_whole(const std::string& text, int64_t least, int64_t most, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
}

}  // namespace

std::optional<PlanDecision> FreezePolicy::decide_drained(const DrainedNow& now) {
  FreezeNow seen;
  const int64_t interval = every_minibatches_ > 0 ? every_minibatches_ : now.minibatches_per_epoch;
  seen.intervals = now.minibatch / interval;
  seen.layers = static_cast<int64_t>(now.layers.size());
  seen.frozen = now.plan.frozen_layers;
  seen.norms = now.gradient_norms;
  seen.norms_before = std::exchange(norms_before_, now.gradient_norms);
  const int64_t frozen = rule_->frozen_after(seen);
  const std::string norms =
      reads_gradients() ? "; gradients of the layers that are trained: " + words_of(seen.norms, seen.frozen)
                        : "";
  std::fprintf(stderr, "adapt: freeze by %s before minibatch %ld: %ld of %ld layers%s%s\n",
               rule_name_.c_str(), now.minibatch, frozen, seen.layers,
               frozen == seen.frozen ? ", as before" : "", norms.c_str());
  if (frozen == seen.frozen) return std::nullopt;
  return PlanDecision{"", {}, "freeze, " + rule_name_, frozen};
}

PlannedChanges ManualFreeze::known() {
  PlannedChanges changes;
  for (const auto& [minibatch, layers] : layers_)
    changes.push_back({minibatch, "", {}, "freeze, manual", layers});
  return changes;
}

std::vector<std::pair<int64_t, int64_t>> parse_freeze_points(const std::string& text,
                                                             const SpecOptions& options) {
  std::vector<std::pair<int64_t, int64_t>> points;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    const std::string point = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t at = point.find('@');
    int64_t layers = 0, minibatch = 0;
    if (at == std::string::npos || !parse_whole(point.substr(0, at), 0, kMostFrozenLayers, layers) ||
        !parse_whole(point.substr(at + 1), 1, kMostCount, minibatch)) {
      options.fail("at", "got '" + point + "', expected LAYERS@MINIBATCH, such as 3@400",
                   "several are joined by +: at=3@400+6@800");
    }
    if (!points.empty() && (minibatch <= points.back().first || layers < points.back().second)) {
      options.fail("at",
                   "got '" + point + "' behind " + std::to_string(points.back().second) + "@" +
                       std::to_string(points.back().first) +
                       ", expected a later minibatch and no fewer layers",
                   "A layer that is frozen stays so.");
    }
    points.emplace_back(minibatch, layers);
  }
  return points;
}

std::unique_ptr<AdaptPolicy> freezing(SpecOptions& options) {
  std::vector<std::string> names = {"manual"};
  for (const FreezeRuleRow& row : freeze_rules()) names.emplace_back(row.name);
  const std::string rule = options.choice("rule", "alpha", names);
  const auto row = std::find_if(freeze_rules().begin(), freeze_rules().end(),
                                [&](const FreezeRuleRow& each) { return rule == each.name; });
  if (row == freeze_rules().end()) {
    const std::string at = options.string("at", "");
    options.finish();
    if (at.empty())
      options.fail("at", "missing", "give for instance --adapt freeze:rule=manual,at=3@400+6@800");
    return std::make_unique<ManualFreeze>(parse_freeze_points(at, options));
  }
  auto made = row->make(options);
  const std::string every = options.string("every", "epoch");
  int64_t minibatches = 0;
  if (every != "epoch" && !parse_whole(every, 1, kMostCount, minibatches))
    options.fail("every", "got '" + every + "', expected epoch or a number of minibatches");
  options.finish();
  return std::make_unique<FreezePolicy>(rule, std::move(made), minibatches);
}

}  // namespace pipewright

#include "runtime/journal/loss_curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/journal/metrics_file.h"

namespace pipewright {
namespace {

double relative_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double relative = std::abs(a - b) / std::abs(b);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

/// The minibatch and its loss, of a line that tells of one; nothing of another.
std::optional<std::pair<int64_t, double>> loss_in(const Json& line, const std::string& where) {
  for (const char* other : {"evaluation", "generation", "recovery", "speed", "link", "spread"})
    if (line.contains(other)) return std::nullopt;
  const Json minibatch = line.value("minibatch", Json());
  const Json loss = line.value("loss", Json("none"));
  if (!minibatch.is_number_integer() || !(loss.is_number() || loss.is_null()))
    throw InputError(where + ": neither a minibatch with its loss nor an evaluation");
  return std::pair{minibatch.get<int64_t>(), number_or_nan(loss)};
}

}  // namespace

RunCurves read_curves(const std::filesystem::path& metrics_file) {
  constexpr double kMost = std::numeric_limits<double>::max();
  RunCurves curves;
  EpochEnds ends;
  std::vector<Json> evaluations;
  for_each_metrics_line(metrics_file, [&](const Json& line, const std::string& where) {
    ends.add(line);
    if (const auto loss = loss_in(line, where)) curves.losses[loss->first] = loss->second;
    if (!line.contains("evaluation")) return;
    JsonReader evaluation = JsonReader(line, where).object("evaluation");
    curves.evaluations.push_back(
        {0, evaluation.number_or_null("loss", -kMost, kMost), evaluation.number_or_null("top1", 0, 1)});
    evaluations.push_back(line["evaluation"]);
  });
  // An epoch's last minibatches may be told of behind its evaluation.
  for (size_t i = 0; i < evaluations.size(); ++i)
    curves.evaluations[i].minibatches = ends.trained_before("evaluation", evaluations[i]);
  return curves;
}

LossDifference compare_losses(const LossCurve& a, const LossCurve& b) {
  LossDifference difference;
  for (const auto& [minibatch, loss] : a) {
    const auto other = b.find(minibatch);
    if (other == b.end()) continue;
    const double relative = relative_difference(loss, other->second);
    if (relative > 0 && difference.first_different < 0) difference.first_different = minibatch;
    if (difference.minibatches < 100) {
      difference.largest_first_100 = std::max(difference.largest_first_100, relative);
    }
    difference.largest = std::max(difference.largest, relative);
    ++difference.minibatches;
  }
  return difference;
}

}  // namespace pipewright

#include "runtime/journal/loss_curves.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

double relative_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double relative = std::abs(a - b) / std::abs(b);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

/// Each line with its number and what it is called in messages.
template <typename Take>
void for_each_line(const std::filesystem::path& metrics_file, const Take& take) {
  std::ifstream in(metrics_file);
  if (!in) {
    throw InputError(metrics_file.string() + ": cannot be read",
                     "give the --output of a pipewright-runtime train or launch");
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = metrics_file.string() + ", line " + std::to_string(number);
    take(parse_json(line, where), where);
  }
}

bool tells_of(const Json& json, const char* what) { return json.is_object() && json.contains(what); }

/// The minibatch and its loss, of a line that tells of one; nothing of another.
std::optional<std::pair<int64_t, double>> loss_in(const Json& json, const std::string& where) {
  for (const char* other : {"evaluation", "generation", "recovery", "speed", "link", "spread"})
    if (tells_of(json, other)) return std::nullopt;
  const Json minibatch = json.is_object() ? json.value("minibatch", Json()) : Json();
  const Json loss = json.is_object() ? json.value("loss", Json("none")) : Json("none");
  if (!minibatch.is_number_integer() || !(loss.is_number() || loss.is_null()))
    throw InputError(where + ": neither a minibatch with its loss nor an evaluation");
  return std::pair{minibatch.get<int64_t>(), number_or_nan(loss)};
}

}  // namespace

LossCurve read_losses(const std::filesystem::path& metrics_file) {
  LossCurve losses;
  for_each_line(metrics_file, [&](const Json& json, const std::string& where) {
    if (const auto loss = loss_in(json, where)) losses[loss->first] = loss->second;
  });
  return losses;
}

std::vector<EvaluationPoint> read_evaluations(const std::filesystem::path& metrics_file) {
  std::vector<EvaluationPoint> points;
  int64_t minibatches = 0;
  for_each_line(metrics_file, [&](const Json& json, const std::string& where) {
    if (const auto loss = loss_in(json, where)) minibatches = std::max(minibatches, loss->first + 1);
    if (!tells_of(json, "evaluation")) return;
    constexpr double kMost = std::numeric_limits<double>::max();
    JsonReader evaluation = JsonReader(json, where).object("evaluation");
    points.push_back({minibatches, evaluation.number_or_null("loss", -kMost, kMost),
                      evaluation.number_or_null("top1", 0, 1)});
  });
  return points;
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

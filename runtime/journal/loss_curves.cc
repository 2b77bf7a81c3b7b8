#include "runtime/journal/loss_curves.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

double relative_difference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double relative = std::abs(a - b) / std::abs(b);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

}  // namespace

LossCurve read_losses(const std::filesystem::path& metrics_file) {
  std::ifstream in(metrics_file);
  if (!in) {
    throw InputError(metrics_file.string() + ": cannot be read",
                     "give the --output of a pipewright-runtime train or launch");
  }
  LossCurve losses;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = metrics_file.string() + ", line " + std::to_string(number);
    const Json json = parse_json(line, where);
    if (json.is_object() &&
        (json.contains("evaluation") || json.contains("generation") || json.contains("recovery") ||
         json.contains("speed") || json.contains("link") || json.contains("spread")))
      continue;
    const Json minibatch = json.is_object() ? json.value("minibatch", Json()) : Json();
    const Json loss = json.is_object() ? json.value("loss", Json("none")) : Json("none");
    if (!minibatch.is_number_integer() || !(loss.is_number() || loss.is_null())) {
      throw InputError(where + ": neither a minibatch with its loss nor an evaluation");
    }
    losses[minibatch.get<int64_t>()] = number_or_nan(loss);
  }
  return losses;
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

#include "profiler/repeats.h"

#include <algorithm>
#include <cmath>

#include "graph/statistics.h"

namespace pipewright {
namespace {

constexpr double kDoubt = 0.05;

/// The most values at each end, of `count`, of which both ends together are beyond the median with no more
/// than kDoubt: a value is below the median or above it as a coin falls.
size_t values_beyond(size_t count) {
  const auto n = static_cast<double>(count);
  double doubt = 0;
  for (size_t beyond = 0;; ++beyond) {
    const auto k = static_cast<double>(beyond);
    doubt +=
        2 * std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
    if (doubt > kDoubt) return beyond;
  }
}

}  // namespace

std::optional<double> median_known_within(std::vector<double> values) {
  const size_t beyond = values_beyond(values.size());
  if (beyond == 0) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double centre = median(values);
  if (centre == 0) return std::nullopt;
  return std::max(values[values.size() - beyond] - centre, centre - values[beyond - 1]) / centre;
}

Repeating repeating(const std::vector<double>& seconds, double elapsed_seconds, const RepeatRule& rule) {
  if (seconds.size() < rule.least) return Repeating::kGoesOn;
  if (seconds.size() >= rule.least_to_know) {
    const std::optional<double> within = median_known_within(seconds);
    if (within && *within <= rule.aim) return Repeating::kKnown;
  }
  return seconds.size() >= rule.most || elapsed_seconds >= rule.most_seconds ? Repeating::kGivesUp
                                                                             : Repeating::kGoesOn;
}

}  // namespace pipewright

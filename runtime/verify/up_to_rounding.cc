#include "runtime/verify/up_to_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr double kRoundings = 10;  // a difference may be so many times what rounding does

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double apart = std::abs(a - b);
  return std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
}

}  // namespace

std::optional<double> UpToRounding::allowed(size_t i) const {
  const double rounded = std::max(rounding.parameters[i].difference, rounding.model);
  if (!(rounded <= std::max(tolerance, kMostAllowed / 2))) return std::nullopt;
  return std::max(tolerance, std::min(kRoundings * rounded, kMostAllowed));
}

size_t UpToRounding::compared() const {
  size_t count = 0;
  for (size_t i = 0; i < found.parameters.size(); ++i) count += allowed(i) ? 1 : 0;
  return count;
}

std::vector<size_t> UpToRounding::beyond() const {
  std::vector<size_t> far;
  for (size_t i = 0; i < found.parameters.size(); ++i) {
    const auto most = allowed(i);
    if (most && !(found.parameters[i].difference <= *most)) far.push_back(i);
  }
  const auto excess = [&](size_t i) { return found.parameters[i].difference / *allowed(i); };
  std::stable_sort(far.begin(), far.end(), [&](size_t a, size_t b) { return excess(a) > excess(b); });
  return far;
}

double loss_tolerance(const std::string& precision) { return precision == "bfloat16" ? 1e-2 : 1e-5; }

LossesUpToRounding compare_losses(const std::vector<double>& got, const std::vector<double>& expected,
                                  const std::vector<double>& unshifted, const std::vector<double>& shifted,
                                  int64_t first, double tolerance) {
  PW_CHECK(expected.size() <= got.size() && got.size() == unshifted.size() && got.size() == shifted.size(),
           "losses of other minibatches");
  LossesUpToRounding losses;
  double mean = 0;
  for (const double loss : expected)
    if (std::isfinite(loss)) mean += std::abs(loss) / static_cast<double>(expected.size());
  double rounded = 0;
  for (size_t k = 0; k < expected.size(); ++k) {
    const double difference = distance(got[k], expected[k]);
    if (std::memcmp(&got[k], &expected[k], sizeof(double)) != 0) losses.equal = false;
    const double size = std::max(std::abs(expected[k]), mean);
    if (difference > 0) losses.largest = std::max(losses.largest, size > 0 ? difference / size : difference);
    rounded = std::max(rounded, distance(unshifted[k], shifted[k]));
    const double part = std::isfinite(size) ? size : 0;
    if (rounded > std::max(tolerance, kMostLossAllowed / 2) * part) {
      ++losses.left_out;
      continue;
    }
    ++losses.compared;
    const double allowed =
        std::max(tolerance * part, std::min(kRoundings * rounded, kMostLossAllowed * part));
    if (!losses.first && difference > allowed)
      losses.first = {first + static_cast<int64_t>(k), got[k], expected[k], difference, allowed};
  }
  return losses;
}

}  // namespace pipewright

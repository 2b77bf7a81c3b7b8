#include "graph/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "graph/error.h"

namespace pipewright {

double median(std::vector<double> values) {
  PW_CHECK(!values.empty(), "median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double relative_spread(const std::vector<double>& values) {
  const double centre = median(values);
  if (centre == 0) return 0;
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - centre));
  return median(std::move(deviations)) / centre;
}

}  // namespace pipewright

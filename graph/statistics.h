// What a series of measurements comes to.
#pragma once

#include <vector>

namespace pipewright {

/// Of at least one value.
double median(std::vector<double> values);
/// Median absolute deviation over the median; 0 if the median is 0.
double relative_spread(const std::vector<double>& values);

}  // namespace pipewright

// A probe's measurements for people.
#pragma once

#include <string>

#include "runtime/probe/measurements.h"

namespace pipewright {

/// Every pair's link, then each level's figures, each with its spread.
std::string probe_report(const Measurements& measurements);

/// A figure that spreads by more than this is not to be trusted.
inline constexpr double kNoisySpread = 0.1;

/// One line, or "" if no figure is noisy.
std::string noise_warning(const Measurements& measurements);

}  // namespace pipewright

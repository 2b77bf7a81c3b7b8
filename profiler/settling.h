// When a device is warm. Its clocks rise under load and fall with heat; until they stand, a pass takes
// another time than the one before.
#pragma once

#include <cstddef>
#include <vector>

namespace pipewright {

struct SettlingRule {
  size_t window = 5;         ///< passes whose median is one look
  double tolerance = 0.02;   ///< two looks in a row differ by this part of the earlier at most: settled
  size_t most_passes = 100;  ///< then measuring begins anyhow
  double most_seconds = 20;  ///< likewise
};

enum class Settling {
  kGoesOn,   ///< another pass is needed
  kSettled,  ///< the medians of the last `window` passes and of the `window` before them agree
  kGivesUp   ///< they do not, and passes or time have run out
};

/// `pass_seconds`: of every pass since the begin, in order, by the device's clock. `elapsed_seconds`: since
/// the begin.
Settling settling(const std::vector<double>& pass_seconds, double elapsed_seconds,
                  const SettlingRule& rule = {});

}  // namespace pipewright

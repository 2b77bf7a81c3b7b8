// Depths where links are shared. Simulations are dear there, so depths are chosen first as if each message
// had its links to itself; then stages are deepened while that gains something: all by as much, each by more
// than the next one, the first alone. Where plans are not only compared, what is not needed is taken back.
#pragma once

#include <string>
#include <vector>

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// A percent of time is within what a profile is off by; the depth that the last percent takes costs memory
/// and older weights.
inline constexpr double kDepthTolerance = 1.01;

/// From the depths `begin` on, none beyond shape.in_flight; as usable_in_flight() leaves them.
std::vector<int64_t> deepened(const std::string& schedule, const PipelineShape& shape,
                              const std::vector<StageTimes>& times, const SimulationOptions& options,
                              const std::vector<int64_t>& begin, DepthAim* aim);

}  // namespace pipewright

// What no run of a pipeline on shared links is faster than: the busiest rank, the busiest link.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/network.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct NetworkPace {
  double floor_seconds = 0;   ///< no run is faster
  double likely_seconds = 0;  ///< the same, if exchanges have what others leave of their links: for comparing
  /// By boundary: what a minibatch's messages there and back take, each alone on its links, on the mean.
  std::vector<double> between_seconds = {};
};

/// Seconds per minibatch in the long run: of each rank its computing, its updates and its exchanges as if
/// these were alone on their links; of each link all bytes that pass it, by the pairs of replicas that their
/// turns join. `rounds`: minibatches from one update to the next, by stage. `devices` by stage and replica.
/// Of times those of computing and of the step count; messages have what the links give them.
NetworkPace network_pace(const LinkTree& tree, const PipelineShape& shape, const std::vector<int64_t>& rounds,
                         const std::vector<StageTimes>& times, const std::vector<StageMessages>& messages,
                         const std::vector<std::vector<int64_t>>& devices);

/// The floor of a simulation, all of whose minibatches come back: 0 where ranks have several stages.
double network_floor_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                             const SimulationOptions& options);

}  // namespace pipewright

#include "optimizer/cost/link_loads.h"

#include "optimizer/cost/stage_times.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

LinkLoads::LinkLoads(const CostInputs& inputs) : inputs_(inputs), tree_(inputs.levels) {}

NetworkPace LinkLoads::pace(const std::vector<StageLoad>& loads,
                            const std::vector<std::vector<int64_t>>& ranks) const {
  PipelineShape shape;
  std::vector<StageTimes> times(loads.size());
  std::vector<StageMessages> messages(loads.size());
  for (size_t s = 0; s < loads.size(); ++s) {
    shape.replicas.push_back(static_cast<int64_t>(ranks[s].size()));
    times[s].forward_seconds = loads[s].compute_seconds();
    times[s].step_seconds = static_cast<double>(loads[s].trainable_bytes) * inputs_.step_seconds_per_byte;
    messages[s] = {loads[s].out_bytes, loads[s].in_bytes,
                   static_cast<int64_t>(exchanged_bytes(loads[s], inputs_))};
  }
  shape.in_flight.assign(loads.size(), 1);
  if (inputs_.minibatches_per_update > 0) {
    shape.weights = WeightRule::kTwoVersions;
    shape.microbatches = inputs_.minibatches_per_update;
  }
  return network_pace(tree_, shape, times, messages, ranks);
}

}  // namespace pipewright

#include "runtime/schedule/one_for_all.h"

namespace pipewright {

OneForAll one_for_all(const PipelineShape& shape, const std::vector<StageTimes>& times) {
  OneForAll one{shape, times};
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    if (!shape.splits(stage)) continue;
    const auto s = static_cast<size_t>(stage);
    one.shape.replicas[s] = 1;
    if (!shape.trains(stage)) continue;
    one.times[s].step_seconds += one.times[s].reduce_seconds;
    one.times[s].reduce_seconds = 0;
  }
  one.shape.split.clear();
  one.shape.rank_numbers.clear();
  return one;
}

SimulationOptions on_own_links(SimulationOptions options) {
  options.network.clear();
  options.messages.clear();
  options.devices.clear();
  options.cores = {};
  options.send_queue = 0;
  options.disturbances = nullptr;  // of ranks, by their numbers
  return options;
}

}  // namespace pipewright

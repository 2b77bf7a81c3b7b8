#include "runtime/schedule/one_for_all.h"

#include <algorithm>
#include <utility>

namespace pipewright {

namespace {

/// Of replicas that are not equally fast, for each pass the one that takes longest.
void take_most_of_all(const std::vector<int64_t>& split, StageTimes* times) {
  if (times->replicas.empty()) return;
  const auto whole = static_cast<double>(*std::max_element(split.begin(), split.end()));
  StageTimes most = *times;
  most.replicas.clear();
  const auto take = [](double& most_seconds, double seconds) {
    most_seconds = std::max(most_seconds, seconds);
  };
  most.forward_seconds = most.recompute_seconds = most.backward_seconds = most.backward_weight_seconds =
      most.step_seconds = 0;
  for (size_t q = 0; q < times->replicas.size(); ++q) {
    const ReplicaTimes& own = times->replicas[q];
    const double part = static_cast<double>(split[q]) / whole;
    take(most.forward_seconds, part * own.forward_seconds);
    take(most.recompute_seconds, part * own.recompute_seconds);
    take(most.backward_seconds, part * own.backward_seconds);
    take(most.backward_weight_seconds, part * own.backward_weight_seconds);
    take(most.step_seconds, own.step_seconds);
  }
  *times = std::move(most);
}

}  // namespace

OneForAll one_for_all(const PipelineShape& shape, const std::vector<StageTimes>& times) {
  OneForAll one{shape, times};
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    if (!shape.splits(stage)) continue;
    const auto s = static_cast<size_t>(stage);
    one.shape.replicas[s] = 1;
    take_most_of_all(shape.split[s], &one.times[s]);
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

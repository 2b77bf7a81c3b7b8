#include "optimizer/plan/drain_floor.h"

#include <algorithm>

#include "optimizer/cost/stage_times.h"

namespace pipewright {

double drain_floor_seconds(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas,
                           const CostInputs& inputs, bool own_links) {
  const auto interval = static_cast<double>(inputs.minibatches_per_update);
  const auto update = [&](size_t s) {
    const double exchange =
        own_links ? all_reduce_seconds(exchanged_bytes(loads[s], inputs), replicas[s], inputs) : 0;
    return exchange + step_seconds(loads[s], inputs);
  };
  double least = 0;
  size_t first = 0;  // that is trained: those before it run ahead, over the updates
  for (; loads[first].frozen; ++first)
    least = std::max(least, loads[first].forward_seconds * interval / static_cast<double>(replicas[first]));
  double trip = update(first);  // through all earlier stages and back, and the update there
  for (size_t s = first; s < loads.size(); ++s) {
    const StageLoad& load = loads[s];
    const auto runs = static_cast<double>((inputs.minibatches_per_update + replicas[s] - 1) / replicas[s]);
    // What comes after a gradient has been sent on keeps no earlier stage waiting.
    const double later = inputs.split_backward ? load.backward_weight_seconds : 0;
    const double waited_for = load.compute_seconds() - later;
    least = std::max({least, runs * load.compute_seconds() + update(s), runs * waited_for + trip});
    trip += waited_for;
    if (own_links) trip += 2 * message_seconds(static_cast<double>(load.out_bytes), inputs);
  }
  return least / interval;
}

}  // namespace pipewright

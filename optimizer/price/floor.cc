#include "optimizer/price/floor.h"

#include <algorithm>

#include "graph/pipeline_rules.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {

Floor::Floor(const CostInputs& inputs) : inputs_(inputs), drains_(facts_of(inputs.weights).drains()) {
  if (!inputs.levels.empty()) tree_ = std::make_unique<LinkTree>(inputs.levels);
}

NetworkPace Floor::pace(const std::vector<StageLoad>& loads, const std::vector<int64_t>& replicas,
                        const std::vector<std::vector<int64_t>>& ranks) const {
  NetworkPace pace = on_network() ? shared_links_pace(loads, ranks) : own_links_pace(loads, replicas);
  if (drains_) pace.floor_seconds = std::max(pace.floor_seconds, drained_seconds(loads, replicas));
  pace.likely_seconds = std::max(pace.likely_seconds, pace.floor_seconds);
  return pace;
}

double Floor::exchange_seconds(const StageLoad& load, int64_t replicas) const {
  return all_reduce_seconds(exchanged_bytes(load, inputs_), replicas, inputs_);
}

NetworkPace Floor::own_links_pace(const std::vector<StageLoad>& loads,
                                  const std::vector<int64_t>& replicas) const {
  NetworkPace pace;
  for (size_t s = 0; s < loads.size(); ++s) {
    // Where pipelines drain, the simulation alone says what they take.
    if (!drains_) {
      StagePeriod period = stage_period(loads[s], replicas[s], inputs_);
      // Of an interval it has the exchange of any number of replicas.
      if (inputs_.minibatches_per_update > 0)
        period.gradient_sync_seconds =
            (exchange_seconds(loads[s], replicas[s]) + tied_seconds(loads[s], inputs_)) /
            static_cast<double>(inputs_.minibatches_per_update);
      pace.floor_seconds = std::max(pace.floor_seconds, period.total_seconds());
    }
    const auto bytes = static_cast<double>(loads[s].out_bytes);
    if (s + 1 < loads.size())
      pace.between_seconds.push_back((loads[s].frozen ? 1 : 2) * message_seconds(bytes, inputs_));
  }
  return pace;
}

NetworkPace Floor::shared_links_pace(const std::vector<StageLoad>& loads,
                                     const std::vector<std::vector<int64_t>>& ranks) const {
  PipelineShape shape;
  std::vector<StageTimes> times(loads.size());
  std::vector<StageMessages> messages(loads.size());
  for (size_t s = 0; s < loads.size(); ++s) {
    shape.replicas.push_back(static_cast<int64_t>(ranks[s].size()));
    times[s].forward_seconds = loads[s].compute_seconds();
    times[s].step_seconds = step_seconds(loads[s], inputs_);
    messages[s] = {loads[s].out_bytes, loads[s].in_bytes,
                   static_cast<int64_t>(ring_part(ranks[s], inputs_) * exchanged_bytes(loads[s], inputs_))};
  }
  shape.in_flight.assign(loads.size(), 1);
  if (inputs_.minibatches_per_update > 0) {
    shape.weights = WeightRule::kTwoVersions;
    shape.microbatches = inputs_.minibatches_per_update;
  }
  return network_pace(*tree_, shape, times, messages, ranks);
}

/// Of an interval between updates each stage has a replica that runs its part of the minibatches, rounded up,
/// one after the other: after the first has come to it through all earlier stages, and before the last has
/// gone back through them to the first stage's update. On a network messages and sums count for nothing here.
double Floor::drained_seconds(const std::vector<StageLoad>& loads,
                              const std::vector<int64_t>& replicas) const {
  const auto interval = static_cast<double>(inputs_.minibatches_per_update);
  const auto update = [&](size_t s) {
    return (on_network() ? 0 : exchange_seconds(loads[s], replicas[s])) + step_seconds(loads[s], inputs_);
  };
  double least = 0;
  size_t first = 0;  // that is trained: those before it run ahead, over the updates
  for (; loads[first].frozen; ++first)
    least = std::max(least, loads[first].forward_seconds * interval / static_cast<double>(replicas[first]));
  double trip = update(first);  // through all earlier stages and back, and the update there
  for (size_t s = first; s < loads.size(); ++s) {
    const StageLoad& load = loads[s];
    const auto runs = static_cast<double>((inputs_.minibatches_per_update + replicas[s] - 1) / replicas[s]);
    // What comes after a gradient has been sent on keeps no earlier stage waiting.
    const double later = inputs_.split_backward ? load.backward_weight_seconds : 0;
    const double waited_for = load.compute_seconds() - later;
    least = std::max({least, runs * load.compute_seconds() + update(s), runs * waited_for + trip});
    trip += waited_for;
    if (!on_network()) trip += 2 * message_seconds(static_cast<double>(load.out_bytes), inputs_);
  }
  return least / interval;
}

}  // namespace pipewright

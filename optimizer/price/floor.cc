#include "optimizer/price/floor.h"

#include <algorithm>
#include <limits>

#include "graph/pipeline_rules.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_times.h"

namespace pipewright {

Floor::Floor(const CostInputs& inputs) : inputs_(inputs), drains_(facts_of(inputs.weights).drains()) {
  if (!inputs.own_links()) tree_ = std::make_unique<LinkTree>(inputs.levels);
}

NetworkPace Floor::pace(const std::vector<StageLoad>& loads, const std::vector<FloorStage>& stages) const {
  NetworkPace pace = on_network() ? shared_links_pace(loads, stages) : own_links_pace(loads, stages);
  if (drains_) pace.floor_seconds = std::max(pace.floor_seconds, drained_seconds(loads, stages));
  pace.likely_seconds = std::max(pace.likely_seconds, pace.floor_seconds);
  return pace;
}

double Floor::exchange_seconds(const StageLoad& load, int64_t replicas) const {
  return all_reduce_seconds(exchanged_bytes(load, inputs_), replicas, inputs_);
}

double Floor::least_compute_seconds(const StageLoad& load, const FloorStage& stage) const {
  if (inputs_.speeds.empty()) return load.compute_seconds();
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t rank : stage.ranks) least = std::min(least, compute_seconds_on(load, inputs_, rank));
  return least;
}

double Floor::waited_part(const StageLoad& load) const {
  // On devices of other classes the backward may be nearly all.
  const double of = inputs_.classes.empty() ? load.compute_seconds() : load.backward_seconds;
  return of > 0 ? 1 - load.backward_weight_seconds / of : 1;
}

/// For a minibatch of the stage, what its busiest replica computes.
double Floor::busiest_compute_seconds(const StageLoad& load, const FloorStage& stage) const {
  double most = 0;
  for (size_t q = 0; q < stage.ranks.size(); ++q)
    most = std::max(most, stage.share(q) * compute_seconds_on(load, inputs_, stage.ranks[q]));
  return most / static_cast<double>(stage.round());
}

NetworkPace Floor::own_links_pace(const std::vector<StageLoad>& loads,
                                  const std::vector<FloorStage>& stages) const {
  NetworkPace pace;
  for (size_t s = 0; s < loads.size(); ++s) {
    const FloorStage& stage = stages[s];
    // Where pipelines drain, the simulation alone says what they take.
    if (!drains_) {
      StagePeriod period = stage_period(loads[s], stage.replicas, inputs_);
      if (!inputs_.speeds.empty()) period.compute_seconds = busiest_compute_seconds(loads[s], stage);
      if (!stage.shares.empty()) {
        const double shorter = static_cast<double>(stage.replicas) / static_cast<double>(stage.round());
        const int64_t most = *std::max_element(stage.shares.begin(), stage.shares.end());
        const auto update_of = [&](int64_t turn) {
          return static_cast<double>(minibatches_of_update(turn, loads[s].later_devices, inputs_));
        };
        const double rarer = update_of(stage.replicas) / update_of(stage.round());
        period.gradient_sync_seconds *= rarer;
        period.step_seconds *= rarer;
        period.link_seconds *= static_cast<double>(most) * shorter;
      }
      // Of an interval it has the exchange of any number of replicas.
      if (inputs_.minibatches_per_update > 0)
        period.gradient_sync_seconds =
            (exchange_seconds(loads[s], stage.replicas) + tied_seconds(loads[s], inputs_)) /
            static_cast<double>(inputs_.minibatches_per_update);
      pace.floor_seconds = std::max(pace.floor_seconds, period.total_seconds());
    }
    const auto bytes = static_cast<double>(loads[s].out_bytes);
    if (s + 1 < loads.size())
      pace.between_seconds.push_back((loads[s].frozen ? 1 : 2) * message_seconds(bytes, inputs_));
  }
  if (!inputs_.slow_links.empty())
    pace.floor_seconds = std::max(pace.floor_seconds, slow_message_seconds(loads, stages));
  return pace;
}

double Floor::slow_message_seconds(const std::vector<StageLoad>& loads,
                                   const std::vector<FloorStage>& stages) const {
  std::vector<Stage> where(loads.size());
  for (size_t s = 0; s < loads.size(); ++s) where[s].ranks = stages[s].ranks;
  const std::vector<StageTimes> times = slowed_messages(where, loads, inputs_);
  double most = 0;
  for (size_t s = 0; s < loads.size(); ++s)
    most = std::max(most, message_period_seconds(times[s], stages[s].replicas));
  return most;
}

NetworkPace Floor::shared_links_pace(const std::vector<StageLoad>& loads,
                                     const std::vector<FloorStage>& stages) const {
  PipelineShape shape;
  std::vector<StageTimes> times(loads.size());
  std::vector<StageMessages> messages(loads.size());
  std::vector<std::vector<int64_t>> ranks;
  std::vector<int64_t> rounds;
  for (size_t s = 0; s < loads.size(); ++s) {
    ranks.push_back(stages[s].ranks);
    shape.replicas.push_back(static_cast<int64_t>(ranks[s].size()));
    shape.shares.push_back(stages[s].shares);
    times[s].forward_seconds = loads[s].compute_seconds();
    rounds.push_back(minibatches_of_update(stages[s].round(), loads[s].later_devices, inputs_));
    times[s].step_seconds = step_seconds(loads[s], inputs_);
    for (size_t q = 0; !inputs_.speeds.empty() && q < ranks[s].size(); ++q)
      times[s].replicas.push_back({.forward_seconds = compute_seconds_on(loads[s], inputs_, ranks[s][q]),
                                   .step_seconds = times[s].step_seconds});
    messages[s] = {loads[s].out_bytes, loads[s].in_bytes,
                   static_cast<int64_t>(ring_part(ranks[s], inputs_) * exchanged_bytes(loads[s], inputs_))};
  }
  shape.in_flight.assign(loads.size(), 1);
  return network_pace(*tree_, shape, rounds, times, messages, ranks);
}

/// Of an interval between updates each stage has a replica that runs its part of the minibatches, rounded up,
/// one after the other: after the first has come to it through all earlier stages, and before the last has
/// gone back through them to the first stage's update. On a network messages and sums count for nothing here.
double Floor::drained_seconds(const std::vector<StageLoad>& loads,
                              const std::vector<FloorStage>& stages) const {
  const auto interval = static_cast<double>(inputs_.minibatches_per_update);
  const auto update = [&](size_t s) {
    return (on_network() ? 0 : exchange_seconds(loads[s], stages[s].replicas)) +
           step_seconds(loads[s], inputs_);
  };
  // Of an interval, and in the mean of many.
  const auto compute = [&](size_t s) {
    const auto runs =
        static_cast<double>((inputs_.minibatches_per_update + stages[s].replicas - 1) / stages[s].replicas);
    return std::max(runs * least_compute_seconds(loads[s], stages[s]),
                    interval * busiest_compute_seconds(loads[s], stages[s]));
  };
  double least = 0;
  size_t first = 0;  // that is trained: those before it run ahead, over the updates
  for (; loads[first].frozen; ++first) {
    StageLoad frozen = loads[first];
    frozen.recompute = false;
    least = std::max(least, least_compute_seconds(frozen, stages[first]) * interval /
                                static_cast<double>(stages[first].replicas));
  }
  double trip = update(first);  // through all earlier stages and back, and the update there
  for (size_t s = first; s < loads.size(); ++s) {
    const StageLoad& load = loads[s];
    // What comes after a gradient has been sent on keeps no earlier stage waiting.
    const double waits = inputs_.split_backward ? waited_part(load) : 1;
    least = std::max({least, compute(s) + update(s), waits * compute(s) + trip});
    trip += waits * least_compute_seconds(load, stages[s]);
    if (!on_network()) trip += 2 * message_seconds(static_cast<double>(load.out_bytes), inputs_);
  }
  return least / interval;
}

}  // namespace pipewright

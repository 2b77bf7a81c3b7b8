#include "runtime/schedule/simulate.h"

#include <algorithm>

#include "runtime/schedule/one_for_all.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, Span span, const SimulationOptions& options) {
  Simulation simulation;
  Timeline timeline(schedule, shape, times, span, &simulation.actions);
  run_timeline(timeline, options);
  // Each rank's actions come in the order of its list, which the stable sort keeps among equals.
  std::stable_sort(simulation.actions.begin(), simulation.actions.end(),
                   [](const SimulatedAction& a, const SimulatedAction& b) {
                     return a.begin_seconds != b.begin_seconds ? a.begin_seconds < b.begin_seconds
                                                               : a.rank < b.rank;
                   });
  simulation.total_seconds = timeline.total_seconds();
  simulation.steady_minibatch_seconds = timeline.steady_seconds();
  simulation.ranks = timeline.ranks();
  return simulation;
}

Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, int64_t minibatches) {
  return simulate(schedule, shape, times, Span{0, minibatches});
}

double steady_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                const std::vector<StageTimes>& times, Span span,
                                const SimulationOptions& options) {
  Timeline timeline(schedule, shape, times, span, nullptr);
  run_timeline(timeline, options);
  return timeline.steady_seconds();
}

double bottleneck_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                          bool blocking_transfers) {
  check_times(shape, times);
  if (shape.any_splits()) {
    const OneForAll one = one_for_all(shape, times);
    return bottleneck_seconds(one.shape, one.times, blocking_transfers);
  }
  const std::vector<StageTimes> spent = times_with_frozen(shape, times);
  struct Busy {
    std::vector<double> ranks;
    double activations = 0, gradients = 0;  // of the replica with the largest share
  };
  std::vector<Busy> groups(shape.groups());  // seconds per minibatch
  double slowest = 0;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageTimes& t = spent[stage];
    const StageTurns turns(shape, stage);
    const bool first = stage == 0, last = stage + 1 == shape.stages();
    const auto minibatches_for_one_of = [&](int64_t share) {
      return static_cast<double>(turns.cycle_length()) / static_cast<double>(share);
    };
    const double reduce = turns.replicas() > 1 ? t.reduce_seconds : 0;
    const double activation = last ? 0 : t.send_activation_seconds;
    const double gradient = first ? 0 : t.send_gradient_seconds;
    double transfers = 0;
    if (blocking_transfers)
      transfers = activation + gradient + (first ? 0 : spent[stage - 1].send_activation_seconds) +
                  (last ? 0 : spent[stage + 1].send_gradient_seconds);
    Busy& busy = groups[shape.group_of(stage)];
    busy.ranks.resize(static_cast<size_t>(turns.replicas()));
    for (int64_t q = 0; q < turns.replicas(); ++q) {
      const ReplicaTimes own = t.of(q);
      double& rank = busy.ranks[static_cast<size_t>(q)];
      rank += (own.minibatch_seconds() + transfers) / minibatches_for_one_of(turns.share(q)) +
              (own.step_seconds + t.tied_seconds + reduce) / static_cast<double>(turns.round_length());
      slowest = std::max(slowest, rank);
    }
    busy.activations += activation / minibatches_for_one_of(turns.largest_share());
    busy.gradients += gradient / minibatches_for_one_of(turns.largest_share());
    slowest = std::max({slowest, busy.activations, busy.gradients});
  }
  return slowest;
}

}  // namespace pipewright

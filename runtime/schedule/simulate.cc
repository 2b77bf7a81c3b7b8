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
    double rank = 0, activations = 0, gradients = 0;
  };
  std::vector<Busy> groups(shape.groups());  // seconds per minibatch
  double slowest = 0;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageTimes& t = spent[stage];
    const StageTurns turns(shape, stage);
    const bool first = stage == 0, last = stage + 1 == shape.stages();
    // Of the replica with the largest share.
    const double minibatches =
        static_cast<double>(turns.cycle_length()) / static_cast<double>(turns.largest_share());
    const double round = t.step_seconds + t.tied_seconds + (turns.replicas() > 1 ? t.reduce_seconds : 0);
    const double activation = last ? 0 : t.send_activation_seconds;
    const double gradient = first ? 0 : t.send_gradient_seconds;
    double minibatch = t.forward_seconds + t.recompute_seconds + t.backward_seconds;
    if (blocking_transfers)
      minibatch += activation + gradient + (first ? 0 : spent[stage - 1].send_activation_seconds) +
                   (last ? 0 : spent[stage + 1].send_gradient_seconds);
    Busy& busy = groups[shape.group_of(stage)];
    busy.rank += minibatch / minibatches + round / static_cast<double>(turns.round_length());
    busy.activations += activation / minibatches;
    busy.gradients += gradient / minibatches;
    slowest = std::max({slowest, busy.rank, busy.activations, busy.gradients});
  }
  return slowest;
}

}  // namespace pipewright

// Discrete-event simulation of a schedule with times. Because a schedule leaves no choice open, an action
// begins when the one before it on its rank has ended and its message is there; so the simulation is exact
// for its assumptions.
#pragma once

#include <string>
#include <vector>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// Seconds of one stage, for one minibatch on one rank. Transfers run beside compute: a message occupies its
/// sender's outgoing link of that direction (activations, gradients) for the time given and has arrived at
/// its end.
struct StageTimes {
  double forward_seconds = 0;
  double backward_seconds = 0;
  double reduce_seconds = 0;  ///< all-reduce of one round; blocks all replicas of the stage
  double step_seconds = 0;
  double send_activation_seconds = 0;  ///< to the next stage
  double send_gradient_seconds = 0;    ///< to the previous stage
  double backward_weight_seconds = 0;  ///< part of backward_seconds: BW; the rest is BI
};

/// A receive begins when its rank is ready for it and ends when the message is there; a send is what its link
/// does; a reduce begins when the last replica has come.
struct SimulatedAction {
  int64_t rank = 0;  ///< in the order of placements()
  Action action;
  double begin_seconds = 0;
  double end_seconds = 0;
};

struct SimulatedRank {
  Placement placement;
  double busy_seconds = 0;  ///< F, B, U
  double receive_wait_seconds = 0;
  double reduce_seconds = 0;  ///< waiting for the other replicas included
  int64_t peak_in_flight = 0;
};

struct Simulation {
  double total_seconds = 0;
  /// Time per minibatch while the pipeline is full. A minibatch is complete at the end of its backward at
  /// stage 0 (of its forward at the last stage, in a schedule without backward). Taken are the completions
  /// from the middle of the span up to where stage 0 has no more forwards to run; the value is the mean time
  /// between two of them that lie h apart, divided by h, where h is half their number rounded down to a
  /// multiple of the least common multiple of the replica counts, because that is the period of the round
  /// robin. (Where there is no such multiple, half their number; where there are not two completions,
  /// total_seconds divided by the minibatches; 0 for an empty span.)
  double steady_minibatch_seconds = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedAction> actions;  ///< in order of begin time, then rank, then the rank's list
};

/// PlanError for a bad shape or span, InputError for an unknown schedule. CheckError if there is not one
/// StageTimes a stage, all finite and not negative, or if the schedule deadlocks.
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, Span span);
/// The first `minibatches` of a run.
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, int64_t minibatches);
/// Simulation::steady_minibatch_seconds alone, in a fraction of the time.
double steady_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                const std::vector<StageTimes>& times, Span span);

/// No schedule is faster: the time per minibatch of the busiest rank (forward, backward, reduce, step) or
/// link.
double bottleneck_seconds(const std::vector<int64_t>& replicas, const std::vector<StageTimes>& times);

/// In-flight depths for 1f1b: small ones (found greedily from the last stage to the first, then each lowered
/// while that costs nothing) with which the simulated steady state is within 1 % of bottleneck_seconds().
/// `most` bounds each stage (memory), 1 or more; where no depths within the bounds are that fast, the greedy
/// search takes the fastest it meets. The result is usable as it is (usable_in_flight() leaves it unchanged),
/// and the same for the same input. Errors as in simulate().
std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times, const std::vector<int64_t>& most);
/// Without bounds.
std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times);

}  // namespace pipewright

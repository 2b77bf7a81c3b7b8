// Discrete-event simulation of a schedule with times.
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
};

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
  /// Time between completions of minibatches at the last stage... at stage 0's updates, over the second half
  /// of the span and over whole rounds of all stages.
  double steady_minibatch_seconds = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedAction> actions;  ///< in order of begin time, rank
};

/// CheckError if the schedule deadlocks: check_schedule first.
Simulation simulate(const std::string& schedule, const PipelineShape& shape,
                    const std::vector<StageTimes>& times, Span span);

/// In-flight depths for 1f1b: the smallest (found greedily from the last stage to the first, deterministic)
/// with which the simulated steady state is within 0.1 % of what unlimited depth gives. `most` bounds each
/// stage (memory).
std::vector<int64_t> choose_in_flight(const std::vector<int64_t>& replicas,
                                      const std::vector<StageTimes>& times, const std::vector<int64_t>& most);

}  // namespace pipewright

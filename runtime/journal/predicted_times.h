// What a run's plan said of each rank's time, beside what the rank counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/summary.h"

namespace pipewright {

/// Those that the plan puts on the rank, in order; none if it has no part in it.
std::vector<int64_t> stages_of_rank(const Plan& plan, int64_t rank);

/// What the plan says of one minibatch of a rank, over all its stages. What comes once in a round
/// (runtime/schedule/turns.h, without gradient accumulation) counts for the rank's minibatches of the round
/// alike.
struct ExpectedTimes {
  std::vector<int64_t> stages;
  double part = 1;             ///< of all minibatches, those that it takes
  double compute_seconds = 0;  ///< forward and backward
  double update_seconds = 0;   ///< of the weights
  double sync_seconds = 0;     ///< the sum of gradients over replicas
  double period_seconds = 0;   ///< from one of its minibatches to the next
};
/// Of a plan that predicts (Plan::predicted). Zeros for a rank without a stage.
ExpectedTimes expected_of(const Plan& plan, int64_t rank);

/// Time for one minibatch of a rank, in the mean over all that it trained.
struct RankTime {
  double compute_seconds = 0;  ///< forward, backward and update, without waiting
  double other_seconds =
      0;  ///< waiting for messages and replicas, for samples, for --disturb, and anything else
  double period_seconds = 0;  ///< both: from one of its minibatches to the next
};
struct RankTimes {
  int64_t rank = 0;
  std::vector<int64_t> stages;
  RankTime measured, predicted;
};

/// A row for each rank that trained. None where the plan predicts nothing, where it changed on the way (what
/// ranks count is of all their plans), or where ranks were too many for the cores.
std::vector<RankTimes> rank_times(const Summary& summary, const Plan& plan);

/// "4 % slower than predicted; the largest gap, in the mean over all minibatches: rank 1 (stage 1) computes
/// 17.9 ms of 20 ms, predicted 15.7 ms of 18 ms: it had 0.87 of a core". The percentage is of the steady
/// state's median, as the prediction is. The gap is that of a rank's computing or waiting which makes most of
/// the period; a likely cause follows where what was counted shows one: none of the steady state where most
/// of the gap is outside it. "" without rank_times().
std::string prediction_text(const Summary& summary, const Plan& plan);

}  // namespace pipewright

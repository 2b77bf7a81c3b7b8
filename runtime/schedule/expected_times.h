// What a plan says of the time of each of its ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"

namespace pipewright {

/// What the plan says of one minibatch of a rank, over all its stages. What comes once in a round
/// (runtime/schedule/turns.h, without gradient accumulation) counts for the rank's minibatches of the round
/// alike.
struct ExpectedTimes {
  std::vector<int64_t> stages;
  double compute_seconds = 0;  ///< forward and backward
  double update_seconds = 0;   ///< of the weights
  double sync_seconds = 0;     ///< the sum of gradients over replicas
  double period_seconds = 0;   ///< from one of its minibatches to the next
};
/// Of a plan that predicts (Plan::predicted). Zeros for a rank without a stage.
ExpectedTimes expected_of(const Plan& plan, int64_t rank);

}  // namespace pipewright

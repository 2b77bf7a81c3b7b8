// What a plan costs where its ranks are, rank by rank.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct PlacedPrice {
  std::vector<StagePeriod> stages;
  std::vector<double> exchange_seconds;  ///< by stage: one all-reduce
  std::vector<int> in_levels;            ///< by stage: highest level that values from before it cross
  std::vector<int> out_levels;
  /// By stage, of one minibatch on its slowest replica: compute, and the message that comes in.
  std::vector<double> replica_seconds;
  std::vector<double> receive_seconds;
  double link_seconds = 0;  ///< of the busiest link that stages have in common
  std::string busiest_link;
  double total_seconds() const;
  double latency_seconds() const;  ///< of one minibatch through all stages
};
PlacedPrice price_placed(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                         const CostInputs& inputs);

/// How many minibatches pass the stage while the replica does as much as one of them takes; where each is
/// split, as much as the largest part.
double minibatches_of_stage(const Stage& stage, size_t replica);

/// What a sum over these replicas takes of the time of a direct exchange, which price_placed() has: less
/// where NCCL makes it, in a ring that passes each link once, however many ranks are behind it.
double ring_part(const std::vector<int64_t>& ranks, const CostInputs& inputs);
/// Whether there are ranks of which it is below 1.
bool rings_take_less(const CostInputs& inputs);

/// stage_times() where the stages are.
std::vector<StageTimes> placed_times(const std::vector<StageLoad>& loads, const std::vector<Stage>& stages,
                                     const CostInputs& inputs);

/// The least work of a minibatch (StageLoad::least_seconds of all stages) shared out over the ranks by their
/// pace: no plan on them is faster.
double shared_out_seconds(double least_seconds, const std::vector<Stage>& stages, const CostInputs& inputs);

}  // namespace pipewright

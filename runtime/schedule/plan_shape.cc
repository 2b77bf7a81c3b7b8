#include "runtime/schedule/plan_shape.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "runtime/schedule/turns.h"

namespace pipewright {

PipelineShape shape_of(const Plan& plan, int64_t gradient_accumulation) {
  PipelineShape shape;
  int64_t ranks = 0;  // of all stages, a rank counted once for each of its stages
  bool shares = false, split = false;
  for (const Stage& stage : plan.stages) {
    ranks += static_cast<int64_t>(stage.ranks.size());
    shape.replicas.push_back(static_cast<int64_t>(stage.ranks.size()));
    shape.in_flight.push_back(stage.in_flight);
    shape.shares.push_back(stage.shares);
    shape.split.push_back(stage.split);
    shares = shares || !stage.shares.empty();
    split = split || stage.splits();
  }
  if (!shares) shape.shares.clear();
  if (!split) shape.split.clear();
  shape.weights = weight_rule_named(plan.weights);
  shape.microbatches = plan.microbatches;
  shape.accumulation = gradient_accumulation;
  shape.frozen_stages = plan.frozen_stages();
  for (const TiedParameter& tied : plan.tied_parameters) {
    // A frozen stage reads it, so it is trained nowhere.
    if (!tied.stages.empty() && tied.stages.front() < shape.frozen_stages) continue;
    const bool known = std::find(shape.tied.begin(), shape.tied.end(), tied.stages) != shape.tied.end();
    if (!known) shape.tied.push_back(tied.stages);
  }
  // Every rank has equally many stages (Plan::validate).
  if (plan.world_size > 0) shape.stages_per_rank = std::max<int64_t>(1, ranks / plan.world_size);
  shape.v_shaped = shape.stages_per_rank == 2 && plan.v_shaped();
  shape.order = plan.order;
  for (const Placement& at : placements(shape)) {
    const std::vector<int64_t>& numbers = plan.stages[static_cast<size_t>(at.stage)].ranks;
    shape.rank_numbers.push_back(numbers[static_cast<size_t>(at.replica)]);
  }
  return shape;
}

int64_t rank_of(const Plan& plan, int64_t stage, int64_t replica) {
  return plan.stages.at(static_cast<size_t>(stage)).ranks.at(static_cast<size_t>(replica));
}

int64_t rank_of_minibatch(const Plan& plan, const PipelineShape& shape, int64_t stage, int64_t minibatch) {
  return rank_of(plan, stage, replica_of(shape, stage, minibatch));
}

std::vector<int64_t> ranks_of(const Plan& plan) {
  std::set<int64_t> ranks;
  for (const Stage& stage : plan.stages) ranks.insert(stage.ranks.begin(), stage.ranks.end());
  return {ranks.begin(), ranks.end()};
}

int64_t first_stage_of(const Plan& plan, int64_t rank) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int64_t>& ranks = plan.stages[s].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return static_cast<int64_t>(s);
  }
  PW_CHECK(false, "rank " << rank << " has no place in the plan");
  return -1;
}

}  // namespace pipewright

// What the stages of a plan take, every effect once. Prices (price.h) and simulations are made of it.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/stage_times.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Sums of the plan's stages over its nodes. PlanError if the plan does not cover the nodes, lets a value
/// flow backwards or separates tied parameters.
std::vector<StageLoad> loads_of_plan(const Plan& plan, const Dataflow& flow);

/// Devices that differ, links that are slow or shared, ranks of one host beside each other, input, updates,
/// sums over replicas: a price has what is in here, and nothing else.
struct PlanCost {
  /// `inputs`: cost_inputs(); how the plan runs is taken from the plan.
  PlanCost(const Plan& plan, std::vector<StageLoad> loads, CostInputs inputs);

  CostInputs inputs;  ///< with the plan's weight rule, schedule and depth of the first trained stage
  /// With weights vertical, how deep the first trained stage may become: a search kept room for that. 0: any.
  int64_t deepest = 0;
  std::vector<StageLoad> loads;   ///< by stage
  std::vector<StageTimes> times;  ///< by stage: what the simulation is given
  /// What ranks have in common: links (several levels, shared links), with what the stages send, and cores
  /// that are too few for them, with the devices of the ranks. Nothing where each has its own.
  SimulationOptions shared;
};

/// One minibatch is under way at a time.
bool runs_one_at_a_time(const Plan& plan);

/// What ranks of one host take from the stage's; none where its devices are not of the profile's kind.
CrowdFactors crowd_of(const Stage& stage, int64_t world_size, const CostInputs& inputs);
/// The most ranks that a plan of so many has on a host of one of the stage's.
int64_t ranks_on_host(const Stage& stage, int64_t world_size, const CostInputs& inputs);

}  // namespace pipewright

// Pricing a given plan node by node.
#pragma once

#include <vector>

#include "graph/plan.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Loads of the plan's stages, summed over its nodes. PlanError as evaluate_plan says.
std::vector<StageLoad> loads_of_plan(const Plan& plan, const Dataflow& flow, const CostModel& model);

/// cost_inputs() and how the plan runs: version rule, minibatches of an update.
CostInputs inputs_of_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                          const PlanRequest& request);
/// The part of it that the plan alone says.
void set_run_rules(const Plan& plan, CostInputs* inputs);

/// Of each stage by the model, where its ranks are, with what only prices have of its devices' work: what a
/// prediction is made of.
std::vector<StagePeriod> priced_periods(const Plan& plan, const std::vector<StageLoad>& loads,
                                        const CostModel& model, const CostInputs& inputs);
/// The most ranks that a plan of so many has on a host of one of the stage's.
int64_t ranks_on_host(const Stage& stage, int64_t world_size, const CostInputs& inputs);
/// What they take from the stage's; none where its devices are not of the profile's kind.
CrowdFactors crowd_of(const Stage& stage, int64_t world_size, const CostInputs& inputs);
/// What the plan's runtime will spend, with that.
std::vector<StageTimes> times_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                 const CostInputs& inputs);

/// Whether planning simulates such a plan. Otherwise that would take longer than planning should, and depths
/// and period are those of the formula.
bool worth_simulating(const PipelineShape& shape);

/// settled_minibatch_seconds() of a plan. PlanError if the schedule does not finish.
double simulated_seconds(const Plan& plan, const std::vector<StageTimes>& times,
                         const SimulationOptions& how = {});

/// What ranks have in common: links (several levels, shared links), with what the stages send, and cores that
/// are too few for them, with the devices of the ranks. Nothing where each has a link and a core of its own.
SimulationOptions shared_by_ranks(const Plan& plan, const std::vector<StageLoad>& loads,
                                  const CostInputs& inputs);

/// Period of the plan by the formula alone: of its slowest stage, or of the way there and back where only one
/// minibatch is under way at a time.
double formula_seconds(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                       const CostInputs& inputs);

Prediction predict(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                   const CostInputs& inputs, int64_t minibatch_samples);

}  // namespace pipewright

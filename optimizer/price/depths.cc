#include "optimizer/price/depths.h"

#include <algorithm>
#include <utility>

#include "graph/limits.h"
#include "optimizer/cost/stage_memory.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

void run_by(const RunRules& rules, Plan* plan) {
  plan->schedule = rules.schedule;
  plan->weights = rules.weights;
  if (rules.microbatches > 0) plan->microbatches = rules.microbatches;
  const ScheduleFacts& schedule = schedule_facts(rules.schedule);
  if (!schedule.several_stages) return;
  PipelineShape shape;
  shape.replicas.assign(plan->stages.size(), 1);
  shape.stages_per_rank = rules.stages_per_rank;
  shape.v_shaped = schedule.v_shaped;
  plan->world_size = shape.groups();
  for (size_t s = 0; s < plan->stages.size(); ++s) {
    plan->stages[s].ranks = {shape.group_of(static_cast<int64_t>(s))};
    plan->stages[s].frozen = false;  // stages of a rank take turns, frozen or not
  }
}

bool choose_depths(int64_t memory_bytes, bool simulates, Plan* plan, PlanCost* cost, DepthAim* aim) {
  if (runs_one_at_a_time(*plan)) return true;
  CostInputs inputs = cost->inputs;
  inputs.pipeline_depth = cost->deepest;
  PipelineShape shape = shape_of(*plan);
  std::vector<int64_t> bound;
  std::vector<int64_t> most;
  int64_t later = 0;
  for (const int64_t replicas : shape.replicas) later += replicas;
  for (int64_t s = 0; s < shape.stages(); ++s) {
    later -= shape.replicas[s];
    bound.push_back(in_flight_bound(later, shape.replicas[s]));
    const StageTurns turns(shape, s);  // with shares a rank of many minibatches has more of them in flight
    while (!plan->stages[s].shares.empty() && bound.back() < kMostInFlight &&
           turns.run_ahead(bound.back()) < later)
      ++bound.back();
    // Stages of one rank share its memory as they need it, and their depths are the schedule's.
    const int64_t limit =
        shape.stages_per_rank > 1 ? 0 : memory_limit_bytes(inputs, memory_bytes, plan->stages[s].ranks);
    most.push_back(in_flight_that_fits(cost->loads[s], shape.replicas[s], kMostInFlight, limit, inputs));
    if (most.back() < 1) return false;
    if (cost->deepest > 0) most.back() = std::min(most.back(), cost->deepest);
    if (facts_of(inputs.weights).bounds_crossing) {
      const int64_t round = minibatches_of_update(turns.cycle_length(), later, inputs);
      most.back() = std::min(most.back(), turns.depth_that_runs_ahead(round, most.back()));
    }
  }

  std::vector<int64_t> depths;
  shape.in_flight = bound;
  if (simulates && worth_simulating(shape)) {
    shape.in_flight = most;
    depths = choose_in_flight(plan->schedule, shape, cost->times, cost->shared, aim);
  } else {
    for (size_t s = 0; s < bound.size(); ++s) shape.in_flight[s] = std::min(bound[s], most[s]);
    depths =
        facts_of(inputs.weights).drains() ? schedule_named(plan->schedule).depths(shape) : shape.in_flight;
    for (int64_t s = 0; s < shape.frozen_stages; ++s) depths[static_cast<size_t>(s)] = 1;
  }
  for (size_t s = 0; s < depths.size(); ++s) {
    if (depths[s] > most[s]) return false;  // what gpipe takes, whatever there is
    plan->stages[s].in_flight = depths[s];
  }
  cost->inputs.pipeline_depth = plan->first_trained_depth();
  return true;
}

std::optional<Plan> priced_plan(Plan plan, const Pricing& pricing, const std::vector<int64_t>& depths,
                                bool simulates) {
  run_by(pricing.rules, &plan);  // by which stages are captured
  std::vector<StageLoad> loads = loads_of_plan(plan, *pricing.flow);
  for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = depths[s];
  PlanCost cost(plan, std::move(loads), pricing.inputs);
  if (depths.empty() && !choose_depths(pricing.memory_bytes, simulates, &plan, &cost)) return std::nullopt;
  plan.predicted = price(plan, cost, pricing.minibatch_samples);
  return plan;
}

}  // namespace pipewright

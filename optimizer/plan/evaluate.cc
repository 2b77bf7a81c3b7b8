#include "optimizer/plan/evaluate.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/recursion.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

bool one_at_a_time(const Plan& plan) {
  return schedule_facts(plan.schedule).kind == ScheduleKind::kModelParallel;
}

}  // namespace

void set_run_rules(const Plan& plan, CostInputs* inputs) {
  inputs->weights = weight_rule_named(plan.weights);
  inputs->minibatches_per_update = facts_of(inputs->weights).one_update_for_all ? plan.microbatches : 0;
  inputs->pipeline_depth = plan.stages.empty() ? 0 : plan.stages[0].in_flight;
  inputs->split_backward = schedule_facts(plan.schedule).splits_backward;
  inputs->one_at_a_time = one_at_a_time(plan);
}

CostInputs inputs_of_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                          const PlanRequest& request) {
  CostInputs inputs = requested_cost_inputs(profile, topology, request);
  set_run_rules(plan, &inputs);
  return inputs;
}

namespace {

/// Of each stage by the formula, where its ranks are.
std::vector<StagePeriod> periods_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                    const CostModel& model, const CostInputs& inputs) {
  if (inputs.placed()) return price_placed(loads, plan.stages, model, inputs).stages;
  std::vector<StagePeriod> periods;
  for (size_t s = 0; s < loads.size(); ++s) {
    periods.push_back(model.period(loads[s], static_cast<int64_t>(plan.stages[s].ranks.size()), inputs));
  }
  return periods;
}

bool on_one_host(const Stage& stage, const CostInputs& inputs) {
  return std::all_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) {
    return rank / inputs.host_ranks == stage.ranks[0] / inputs.host_ranks;
  });
}

/// Two or more of the stage are in one innermost group.
bool has_replicas_on_one_host(const Stage& stage, const CostInputs& inputs) {
  std::set<int64_t> hosts;
  for (const int64_t rank : stage.ranks) hosts.insert(rank / inputs.host_ranks);
  return hosts.size() < stage.ranks.size();
}

}  // namespace

int64_t ranks_on_host(const Stage& stage, int64_t world_size, const CostInputs& inputs) {
  int64_t most = 1;
  for (const int64_t rank : stage.ranks) {
    const int64_t first = rank / inputs.host_ranks * inputs.host_ranks;
    most = std::max(most, std::min(world_size, first + inputs.host_ranks) - first);
  }
  return most;
}

namespace {

/// All of its devices are of the profile's kind.
bool is_as_profiled(const Stage& stage, const CostInputs& inputs) {
  return std::all_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) {
    const auto device = static_cast<size_t>(rank);
    return (inputs.classes.empty() || inputs.classes[device] == 0) &&
           (inputs.speeds.empty() || inputs.speeds[device] == 1);
  });
}

}  // namespace

CrowdFactors crowd_of(const Stage& stage, int64_t world_size, const CostInputs& inputs) {
  if (!is_as_profiled(stage, inputs)) return {};
  return crowd_factors(ranks_on_host(stage, world_size, inputs), has_replicas_on_one_host(stage, inputs),
                       inputs);
}

std::vector<StageTimes> times_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                 const CostInputs& inputs) {
  std::vector<StageTimes> times;
  if (inputs.placed()) {
    times = placed_times(loads, plan.stages, inputs);
  } else {
    for (size_t s = 0; s < loads.size(); ++s) {
      times.push_back(stage_times(loads[s], static_cast<int64_t>(plan.stages[s].ranks.size()), inputs));
      add_message_ends(loads[s], 0, 0, inputs, &times.back());
    }
  }
  for (size_t s = 0; s < times.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    add_loading(loads[s], replicas, inputs, &times[s]);
    times[s] = crowded(times[s], crowd_of(plan.stages[s], plan.world_size, inputs));
    times[s] = calibrated(times[s], replicas, ranks_on_host(plan.stages[s], plan.world_size, inputs), inputs);
  }
  return times;
}

double formula_seconds(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                       const CostInputs& inputs) {
  if (one_at_a_time(plan) && inputs.placed()) {
    double seconds = inputs.loads_beside ? 0 : inputs.input_seconds;
    for (const StageTimes& times : placed_times(loads, plan.stages, inputs)) {
      seconds += times.forward_seconds + times.backward_seconds + times.send_activation_seconds +
                 times.send_gradient_seconds;
    }
    return seconds;
  }
  if (one_at_a_time(plan)) return one_at_a_time_seconds(loads, inputs);
  if (inputs.placed() && model.levels == LevelRule::kRecursion)
    return recursion_seconds(loads, plan.stages, inputs);
  const std::vector<StagePeriod> periods = periods_of(plan, loads, model, inputs);
  std::map<int64_t, double> busy;  // by first rank: a rank may have several stages
  double slowest = 0;
  for (size_t s = 0; s < loads.size(); ++s) {
    double& seconds = busy[plan.stages[s].ranks[0]];
    seconds += periods[s].total_seconds();
    slowest = std::max(slowest, seconds);
  }
  if (inputs.placed())
    slowest = std::max(slowest, price_placed(loads, plan.stages, model, inputs).link_seconds);
  return slowest;
}

bool worth_simulating(const PipelineShape& shape) {
  // Choosing depths simulates a few times for each stage.
  constexpr int64_t kFewRanks = 256;
  constexpr int64_t kMostActions = 1000000;
  constexpr int64_t kLongestRound = 4096;
  const int64_t round = pipeline_period(shape, kLongestRound, false).value_or(kLongestRound);
  int64_t depth = 1;
  for (int64_t s = 0; s < shape.stages(); ++s)
    depth = std::max(depth, shape.replicas[s] * shape.in_flight[s]);
  const int64_t minibatches =
      facts_of(shape.weights).drains() ? shape.microbatches : std::max(4 * depth + 16, 4 * round);
  return shape.ranks() <= kFewRanks || minibatches * shape.stages() * shape.stages() <= kMostActions;
}

SimulationOptions shared_by_ranks(const Plan& plan, const std::vector<StageLoad>& loads,
                                  const CostInputs& inputs) {
  SimulationOptions how;
  how.cores = inputs.cores;
  how.sums_take_cores = inputs.sums_take_cores;
  const bool own_links = inputs.levels.size() < 2 && (inputs.levels.empty() || !inputs.levels[0].shared);
  if (own_links && !how.cores.too_few_for(plan.world_size)) return how;
  for (const Placement& at : placements(shape_of(plan)))
    how.devices.push_back(plan.stages[static_cast<size_t>(at.stage)].ranks[static_cast<size_t>(at.replica)]);
  if (own_links) return how;
  how.network = inputs.levels;
  for (size_t s = 0; s < loads.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    how.messages.push_back(
        {loads[s].out_bytes, loads[s].in_bytes,
         static_cast<int64_t>(
             ring_part(plan.stages[s], inputs) *
             priced_exchange_bytes(loads[s], replicas, inputs, on_one_host(plan.stages[s], inputs)))});
  }
  return how;
}

double simulated_seconds(const Plan& plan, const std::vector<StageTimes>& times,
                         const SimulationOptions& how) {
  const PipelineShape shape = shape_of(plan);
  const ScheduleCheck check = check_schedule(plan.schedule, shape, rehearsal_span(shape));
  if (!check.completes || !check.problem.empty())
    throw PlanError("plan: schedule '" + plan.schedule + "' does not finish: " + check.problem);
  return settled_minibatch_seconds(plan.schedule, shape, times, how);
}

namespace {

/// What a device does in a minibatch of each stage, without waiting: as the formula, with what only prices
/// have (further work of updates, ranks of one host, slow ranks' updates and sums). Links as the formula.
std::vector<StagePeriod> priced(std::vector<StagePeriod> periods, const Plan& plan,
                                const std::vector<StageTimes>& times, const CostInputs& inputs) {
  for (size_t s = 0; s < times.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const StageTimes& t = times[s];
    const auto replicas = static_cast<double>(stage.ranks.size());
    double round = stage.splits() ? 1 : replicas;
    if (!stage.shares.empty())
      round = static_cast<double>(std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0}));
    if (inputs.minibatches_per_update > 0) round = static_cast<double>(inputs.minibatches_per_update);
    const double compute = t.forward_seconds + t.recompute_seconds + t.backward_seconds;
    periods[s].compute_seconds = compute / (stage.splits() ? 1 : replicas);
    periods[s].gradient_sync_seconds =
        (t.tied_seconds + (stage.ranks.size() > 1 ? t.reduce_seconds : 0)) / round;
    periods[s].step_seconds = t.step_seconds / round;
  }
  return periods;
}

}  // namespace

std::vector<StagePeriod> priced_periods(const Plan& plan, const std::vector<StageLoad>& loads,
                                        const CostModel& model, const CostInputs& inputs) {
  std::vector<StagePeriod> periods = periods_of(plan, loads, model, inputs);
  return model.simulated ? priced(std::move(periods), plan, times_of(plan, loads, inputs), inputs) : periods;
}

Prediction predict(const Plan& plan, const std::vector<StageLoad>& loads, const CostModel& model,
                   const CostInputs& inputs, int64_t minibatch_samples) {
  Prediction prediction;
  double work = 0;  // of one minibatch in all stages, one rank at a time
  double slowest = -1;
  const std::vector<StageTimes> times = times_of(plan, loads, inputs);
  std::vector<StagePeriod> periods = periods_of(plan, loads, model, inputs);
  if (model.simulated) periods = priced(std::move(periods), plan, times, inputs);
  for (size_t s = 0; s < loads.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    const StagePeriod& period = periods[s];
    prediction.stages.push_back(
        stage_prediction(loads[s], replicas, plan.stages[s].in_flight, times[s], inputs));
    work += loads[s].least_seconds;
    if (period.total_seconds() <= slowest) continue;
    slowest = period.total_seconds();
    prediction.bottleneck = "stage " + std::to_string(s) + ": " + period.binding();
  }

  double formula = formula_seconds(plan, loads, model, inputs);
  if (model.simulated && !one_at_a_time(plan))
    for (const StagePeriod& period : periods) formula = std::max(formula, period.device_seconds());
  const bool flushes = facts_of(inputs.weights).drains();
  prediction.minibatch_seconds = formula;
  if (inputs.placed()) {
    const PlacedPrice price = price_placed(loads, plan.stages, model, inputs);
    if (model.levels == LevelRule::kRecursion) {
      prediction.bottleneck = "PipeDream's recursion";
    } else if (price.link_seconds > slowest) {
      prediction.bottleneck = price.busiest_link;
    }
  }
  if (one_at_a_time(plan)) {
    prediction.bottleneck =
        std::string("one minibatch at a time: ") + (2 * work >= formula ? "compute" : "transfer");
  }
  // Fill and drain are known to the simulation alone; it takes the replicas of a stage for equally fast, at
  // their pace together.
  if (model.simulated && worth_simulating(shape_of(plan)) && (inputs.speeds.empty() || flushes)) {
    Plan even = plan;
    if (!inputs.speeds.empty()) {
      for (Stage& stage : even.stages) stage.shares.clear();
    }
    const SimulationOptions how = shared_by_ranks(even, loads, inputs);
    const double steady = simulated_seconds(even, times, how);
    if (how.cores.too_few_for(plan.world_size) && !shape_of(even).any_splits())
      prediction.shared_cores = how.cores.cores;
    // With links of their own the formula also knows that both directions of a boundary share one, and the
    // simulation knows waiting. On a network the simulation knows both, and which replicas talk to which,
    // where the formula takes traffic for evenly spread. An update interval's exchange is too long in it.
    const bool formula_knows_more = inputs.placed() ? !inputs.speeds.empty() : !flushes;
    prediction.minibatch_seconds = formula_knows_more ? std::max(formula, steady) : steady;
    if (prediction.minibatch_seconds > 1.01 * formula) {
      char waiting[64];
      std::snprintf(waiting, sizeof waiting, "; %.3g %% more for %s",
                    100 * (prediction.minibatch_seconds / formula - 1),
                    flushes                       ? "fill and drain"
                    : prediction.shared_cores > 0 ? "waiting, for cores too"
                                                  : "waiting");
      prediction.bottleneck += " (" + format_seconds(formula) + waiting + ")";
    }
  }
  if (model.simulated && inputs.input_seconds > 0) {
    const double loading =
        loading_seconds(loads[0], static_cast<int64_t>(plan.stages[0].ranks.size()), inputs);
    if (loading >= prediction.minibatch_seconds ||
        (loading >= 0.99 * prediction.minibatch_seconds && inputs.input_seconds > loads[0].compute_seconds()))
      prediction.bottleneck = "stage 0: loading of input";
    prediction.minibatch_seconds = std::max(prediction.minibatch_seconds, loading);
  }
  if (!one_at_a_time(plan)) work = shared_out_seconds(work, plan.stages, inputs);
  prediction.lower_bound_seconds = std::min(work, prediction.minibatch_seconds);
  if (minibatch_samples > 0 && prediction.minibatch_seconds > 0) {
    prediction.samples_per_second = static_cast<double>(minibatch_samples) / prediction.minibatch_seconds;
  }
  return prediction;
}

Prediction evaluate_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request) {
  const CostModel& model = cost_model_named(request.objective);
  const CostInputs inputs = inputs_of_plan(plan, profile, topology, request);
  if (plan.world_size > topology.device_count()) {
    throw InfeasibleError("plan: needs " + std::to_string(plan.world_size) + " devices; the topology has " +
                          std::to_string(topology.device_count()));
  }
  const Dataflow flow(profile, request.class_profiles);
  return predict(plan, loads_of_plan(plan, flow, model), model, inputs, profile.minibatch_samples);
}

}  // namespace pipewright

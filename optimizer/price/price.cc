#include "optimizer/price/price.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>

#include "graph/error.h"
#include "graph/units.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/message_limits.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {
namespace {

/// What the busiest device does in a minibatch of each stage, without waiting: as the formula, with what only
/// prices have (further work of updates, ranks of one host, slow ranks' updates and sums, slow links).
void add_priced(const Plan& plan, const PlanCost& cost, std::vector<StagePeriod>* periods) {
  const PipelineShape shape = shape_of(plan);
  for (size_t s = 0; s < cost.times.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const StageTimes& t = cost.times[s];
    StagePeriod& period = (*periods)[s];
    const auto replicas = static_cast<int64_t>(stage.ranks.size());
    const auto round = static_cast<double>(StageTurns(shape, static_cast<int64_t>(s)).round_length());
    period.gradient_sync_seconds = (t.tied_seconds + (replicas > 1 ? t.reduce_seconds : 0)) / round;
    period.compute_seconds = period.step_seconds = 0;
    for (size_t q = 0; q < stage.ranks.size(); ++q) {
      const ReplicaTimes own = t.of(static_cast<int64_t>(q));
      const double compute = own.minibatch_seconds() / minibatches_of_stage(stage, q);
      const double step = own.step_seconds / round;
      if (compute + step < period.compute_seconds + period.step_seconds) continue;
      period.compute_seconds = compute;
      period.step_seconds = step;
    }
    if (!cost.inputs.slow_links.empty())
      period.link_seconds = std::max(period.link_seconds, message_period_seconds(t, replicas));
  }
}

/// The way there and back of one minibatch at a time, without updates.
double trip_seconds(const PlanCost& cost) {
  double seconds = 0;
  for (const StageTimes& t : cost.times)
    seconds += t.forward_seconds + t.recompute_seconds + t.backward_seconds + t.send_activation_seconds +
               t.send_gradient_seconds;
  return seconds;
}

/// How busy devices and links are with a minibatch.
struct Busy {
  std::vector<StagePeriod> periods;  ///< by stage
  double link_seconds = 0;           ///< of the busiest link that stages have in common
  std::string link;
  double seconds = 0;  ///< the most of all, or the way there and back of one minibatch at a time
};

Busy busy_of(const Plan& plan, const PlanCost& cost) {
  const CostInputs& inputs = cost.inputs;
  Busy busy;
  if (inputs.placed()) {
    PlacedPrice placed = price_placed(cost.loads, plan.stages, inputs);
    busy.periods = std::move(placed.stages);
    busy.link_seconds = placed.link_seconds;
    busy.link = std::move(placed.busiest_link);
  } else {
    for (size_t s = 0; s < cost.loads.size(); ++s) {
      const Stage& stage = plan.stages[s];
      const auto replicas = static_cast<int64_t>(stage.ranks.size());
      busy.periods.push_back(stage_period(cost.loads[s], replicas, inputs));
      if (stage.shares.empty()) continue;
      double most = 0;  // of the stage's minibatches, of one replica
      for (size_t q = 0; q < stage.ranks.size(); ++q)
        most = std::max(most, 1 / minibatches_of_stage(stage, q));
      busy.periods.back().link_seconds *= most * static_cast<double>(replicas);
    }
  }
  add_priced(plan, cost, &busy.periods);
  if (runs_one_at_a_time(plan)) {
    busy.seconds = trip_seconds(cost);
    return busy;
  }
  busy.seconds = busy.link_seconds;
  std::map<int64_t, double> of_rank;  // by a stage's first rank, which may have several stages
  for (size_t s = 0; s < busy.periods.size(); ++s) {
    double& seconds = of_rank[plan.stages[s].ranks[0]];
    seconds += busy.periods[s].total_seconds();
    busy.seconds = std::max(busy.seconds, seconds);
  }
  return busy;
}

/// Whether links are busy in a way that the simulation does not have. With links of their own the formula
/// also knows that both directions of a boundary share one, and the simulation knows waiting. On a network
/// the simulation knows both, and which replicas talk to which, where the formula takes traffic for evenly
/// spread. An update interval's exchange is too long in it. Of one minibatch at a time it knows less: the
/// first stage's updates come beside the way there and back, and frozen stages begin the next one.
bool formula_knows_more(const PlanCost& cost) {
  return cost.shared.network.empty() && !cost.inputs.one_at_a_time && !facts_of(cost.inputs.weights).drains();
}

/// Below which inputs do not come.
double input_period_seconds(const Plan& plan, const PlanCost& cost) {
  if (cost.inputs.input_seconds == 0) return 0;
  return loading_seconds(cost.loads[0], static_cast<int64_t>(plan.stages[0].ranks.size()), cost.inputs);
}

}  // namespace

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

std::vector<StagePeriod> busy_periods(const Plan& plan, const PlanCost& cost) {
  return busy_of(plan, cost).periods;
}

namespace {

/// Of a rank in a V, which has two stages, those of the moment at which they are most together.
std::vector<StageMemory> stage_memories(const Plan& plan, const PlanCost& cost, const PipelineShape& shape) {
  const auto memory_of = [&](int64_t stage, const StageMoment* moment) {
    const auto s = static_cast<size_t>(stage);
    return stage_memory(cost.loads[s], shape.replicas[s], shape.in_flight[s], cost.inputs,
                        untaken_gradients(shape, stage), moment);
  };
  std::vector<StageMemory> memories;
  for (int64_t s = 0; s < shape.stages(); ++s) memories.push_back(memory_of(s, nullptr));
  if (!shape.v_shaped) return memories;
  for (int64_t group = 0; group < shape.groups(); ++group) {
    const int64_t down = group, back = shape.next_of_group(group);
    int64_t most = -1;
    for (int64_t replica = 0; replica < shape.replicas[static_cast<size_t>(group)]; ++replica)
      for (const auto& moment : rank_moments(plan.schedule, shape, group, replica)) {
        const StageMemory first = memory_of(down, &moment[static_cast<size_t>(down)]);
        const StageMemory second = memory_of(back, &moment[static_cast<size_t>(back)]);
        if (first.total_bytes() + second.total_bytes() <= most) continue;
        most = first.total_bytes() + second.total_bytes();
        memories[static_cast<size_t>(down)] = first;
        memories[static_cast<size_t>(back)] = second;
      }
  }
  return memories;
}

}  // namespace

std::vector<StagePrediction> stage_predictions(const Plan& plan, const PlanCost& cost) {
  const std::vector<StageMemory> memories = stage_memories(plan, cost, shape_of(plan));
  std::vector<StagePrediction> stages;
  for (size_t s = 0; s < cost.loads.size(); ++s)
    stages.push_back(stage_prediction(cost.times[s], memories[s]));
  return stages;
}

double price_seconds(const Plan& plan, const PlanCost& cost, std::optional<double> simulated) {
  const PipelineShape shape = shape_of(plan);
  if (!simulated && worth_simulating(shape))
    simulated = settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared);
  double seconds = simulated.value_or(0);
  if (!simulated || formula_knows_more(cost)) seconds = std::max(seconds, busy_of(plan, cost).seconds);
  return std::max(seconds, input_period_seconds(plan, cost));
}

namespace {

/// What sets the pace, in words.
std::string cause_of(const Plan& plan, const PlanCost& cost, const Busy& busy) {
  std::string cause;
  double slowest = -1;
  double work = 0;
  for (size_t s = 0; s < busy.periods.size(); ++s) {
    work += cost.loads[s].least_seconds;
    if (busy.periods[s].total_seconds() <= slowest) continue;
    slowest = busy.periods[s].total_seconds();
    cause = "stage " + std::to_string(s) + ": " + busy.periods[s].binding();
  }
  if (runs_one_at_a_time(plan))
    return std::string("one minibatch at a time: ") + (2 * work >= busy.seconds ? "compute" : "transfer");
  return busy.link_seconds > slowest ? busy.link : cause;
}

/// " (10 ms; 5 % more for waiting)", where ranks wait.
std::string waiting_text(const PlanCost& cost, const Busy& busy, double seconds, bool for_cores) {
  if (seconds <= 1.01 * busy.seconds) return "";
  char waiting[64];
  std::snprintf(waiting, sizeof waiting, "; %.3g %% more for %s)", 100 * (seconds / busy.seconds - 1),
                facts_of(cost.inputs.weights).drains() ? "fill and drain"
                : for_cores                            ? "waiting, for cores too"
                                                       : "waiting");
  return " (" + format_seconds(busy.seconds) + waiting;
}

void check_finishes(const Plan& plan, const PipelineShape& shape) {
  const ScheduleCheck check = check_schedule(plan.schedule, shape, rehearsal_span(shape));
  if (!check.completes || !check.problem.empty())
    throw PlanError("plan: schedule '" + plan.schedule + "' does not finish: " + check.problem);
}

}  // namespace

Prediction price(const Plan& plan, const PlanCost& cost, int64_t minibatch_samples) {
  const std::vector<StageLoad>& loads = cost.loads;
  Prediction prediction;
  prediction.stages = stage_predictions(plan, cost);
  double work = 0;  // of one minibatch in all stages, one rank at a time
  for (const StageLoad& load : loads)
    if (!runs_one_at_a_time(plan) || !load.frozen) work += load.least_seconds;
  const Busy busy = busy_of(plan, cost);
  prediction.bottleneck = cause_of(plan, cost, busy);
  double seconds = busy.seconds;
  if (const PipelineShape shape = shape_of(plan); worth_simulating(shape)) {
    check_finishes(plan, shape);
    const double simulated = settled_minibatch_seconds(plan.schedule, shape, cost.times, cost.shared);
    seconds = formula_knows_more(cost) ? std::max(seconds, simulated) : simulated;
    const bool shares_cores = cost.shared.cores.too_few_for(plan.world_size) && !shape.any_splits();
    if (shares_cores) prediction.shared_cores = cost.shared.cores.cores;
    prediction.bottleneck += waiting_text(cost, busy, seconds, shares_cores);
  }
  const double input = input_period_seconds(plan, cost);
  if (input > 0 && (input >= seconds ||
                    (input >= 0.99 * seconds && input_seconds(cost.inputs) > loads[0].compute_seconds())))
    prediction.bottleneck = "stage 0: loading of input";
  prediction.minibatch_seconds = std::max(seconds, input);
  if (!runs_one_at_a_time(plan)) work = shared_out_seconds(work, plan.stages, cost.inputs);
  prediction.lower_bound_seconds = std::min(work, prediction.minibatch_seconds);
  if (minibatch_samples > 0 && prediction.minibatch_seconds > 0) {
    prediction.samples_per_second = static_cast<double>(minibatch_samples) / prediction.minibatch_seconds;
  }
  return prediction;
}

}  // namespace pipewright

#include "optimizer/plan/run_rules.h"

#include <algorithm>

#include "graph/delay_corrections.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/strategies.h"
#include "graph/update_rules.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/search/few_cuts.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

/// GPipe's authors find the bubble negligible from four microbatches a stage on.
constexpr int64_t kMicrobatchesPerDevice = 4;
/// Two versions need as many as the pipeline is deep; slow links want more depth.
constexpr int64_t kMicrobatchesOfTwoVersions = 2;
constexpr int64_t kMostTriedStages = 64;
constexpr int kManyCuts = 96;

bool wants_intervals(const PlanRequest& request) {
  return !request.weights.empty() && weight_rule_facts(request.weights).one_update_for_all;
}

/// InfeasibleError where the run would not go with the weights.
void check_update(const PlanRequest& request, WeightRule weights) {
  UpdateSettings update;
  update.optimizer.name = request.optimizer.empty() ? "sgd" : request.optimizer;
  update.optimizer.momentum = request.optimizer_slots > 0 ? 0.9 : 0;  // of those that may have none
  update.optimizer.delay_correction = request.delay_correction;
  try {
    check_prediction(update.optimizer, weights);
    // Of other rules prices are the same without a correction, which whoever trains can leave out.
    if (facts_of(weights).in_place) check_delay_correction(update, weights);
  } catch (const PlanError& error) {
    throw InfeasibleError(std::string("--weights: ") + error.what(), error.remedy());
  }
}

/// All up to 8, then steps of half.
std::vector<int64_t> numbers_up_to(int64_t most) {
  std::vector<int64_t> numbers;
  for (int64_t n = 1; n < most; n = n < 8 ? n + 1 : n + n / 2) numbers.push_back(n);
  numbers.push_back(most);
  return numbers;
}

}  // namespace

PlanRequest with_run_rules(PlanRequest request, int64_t devices) {
  const StrategyFacts& strategy = searched_strategy(request.strategy);
  if (strategy.kind == StrategyKind::kModelParallel) {
    const ScheduleKind kind = schedule_facts(request.schedule).kind;
    if (kind != ScheduleKind::k1F1B && kind != ScheduleKind::kModelParallel) {
      throw InputError("--strategy model-parallel: runs one minibatch at a time, not by schedule '" +
                       request.schedule + "'");
    }
    request.schedule = "model-parallel";
  }
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  if (schedule.kind == ScheduleKind::kModelParallel && strategy.kind != StrategyKind::kModelParallel) {
    throw InputError(
        "--schedule model-parallel: goes with --strategy model-parallel, not '" + request.strategy + "'",
        "One minibatch at a time gains nothing by replicas or pipelines: --strategy "
        "model-parallel alone says all.");
  }
  if (schedule.kind == ScheduleKind::kCustom)
    throw InputError("--schedule custom: the order is in a plan, and is not searched for",
                     "pipewright-optimizer convert makes such a plan of a schedule in PyTorch's CSV.");
  if (schedule.v_shaped && request.stages_per_rank != 2)
    throw InputError("--stages-per-rank: schedule '" + request.schedule + "' has 2 on each rank, got " +
                         std::to_string(request.stages_per_rank),
                     "Leave it out, or take --schedule interleaved.");
  if (request.weights.empty() && schedule.trains()) request.weights = to_text(schedule.weights.front());
  if (schedule.trains()) weight_rule_named(request.weights);
  Plan plan;
  plan.schedule = request.schedule;
  plan.weights = request.weights;
  try {
    check_schedule_and_weights(plan);
  } catch (const PlanError& error) {
    throw InputError(std::string("--schedule, --weights: ") + error.what(), error.remedy());
  }
  const WeightRuleFacts& rule = weight_rule_facts(request.weights);
  if (rule.needs_equal_turns() && !strategy.equal_replicas) {
    throw InputError("--weights " + request.weights + ": needs stages with equally many replicas",
                     "Take --strategy straight, or another rule: stash, 2bw.");
  }
  if (rule.in_place && request.recompute == "always") {
    throw InputError("--recompute always: with weights '" + request.weights +
                         "' a second forward would read newer weights than the first",
                     "Take --recompute never, or other weights.");
  }
  check_update(request, rule.rule);
  if (!wants_intervals(request)) {
    if (request.microbatches > 0) {
      throw InputError(
          "--microbatches: with weights '" + request.weights + "' every round of a stage is an update",
          "They are for schedules that drain, such as 1f1b-flush and zb-h1, and for --weights 2bw.");
    }
  } else if (request.microbatches == 0) {
    const int64_t each = rule.drains() ? kMicrobatchesPerDevice : kMicrobatchesOfTwoVersions;
    request.microbatches = std::min(each * devices, kMostInFlight);
  }
  if (schedule.several_stages && (request.constraints.any() || strategy.kind != StrategyKind::kBest)) {
    throw InputError("--schedule " + request.schedule +
                         ": not together with --strategy, --replicas, --pin or --max-stages",
                     "Its stages follow from the devices: --stages-per-rank for each.");
  }
  return request;
}

bool drains(const PlanRequest& request) {
  return !request.weights.empty() && weight_rule_facts(request.weights).drains();
}

bool runs_overlapping(const Problem& problem, const PlanRequest& request) {
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  return schedule.trains() && !schedule.several_stages && schedule.kind != ScheduleKind::kModelParallel &&
         !problem.one_in_flight;
}

bool begins_with_known(const PlanRequest& request) {
  return request.effort < 1 && request.known != nullptr && !request.constraints.any();
}

Ties ties_of(const PlanRequest& request) {
  const bool solutions = request.inference_period_seconds > 0;
  return wants_intervals(request) && !solutions ? Ties::kCopies : Ties::kTogether;
}

void search_by_rules(const PlanRequest& request, Problem* problem) {
  const ScheduleFacts& schedule = schedule_facts(request.schedule);
  const WeightRuleFacts& rule = weight_rule_facts(request.weights);
  problem->inputs.weights = rule.rule;
  problem->inputs.minibatches_per_update = wants_intervals(request) ? request.microbatches : 0;
  problem->inputs.pipeline_depth = rule.lag == WeightLag::kFirstStage ? problem->devices : 0;
  problem->interval = wants_intervals(request) ? request.microbatches : 0;
  problem->whole_interval = schedule.holds_interval;
  problem->inputs.split_backward = schedule.splits_backward;
  if (rule.in_place) problem->recompute = Recompute::kNever;
  const int64_t most = request.most_minibatches_per_update;
  if (most == 0 || rule.one_update_for_all) return;
  problem->most_replicas = std::min(problem->most_replicas, most);
  problem->inputs.most_minibatches_of_round = most;
}

std::vector<Solution> interleaved_candidates(const Problem& problem, const PlanRequest& request) {
  std::vector<Solution> found;
  const int64_t most = problem.devices;
  // Briefly, among some of the cuts.
  const bool brief = request.effort < 1;
  const std::vector<int> numbers = thinned(*problem.states, brief ? kManyCuts : problem.states->size());
  const States some = some_of(*problem.states, numbers);
  // Stages of one rank share its memory as they need it: what fits, its plan says. A search knows an even
  // share, which is mostly too little for some, or no limit.
  std::vector<std::pair<int64_t, Recompute>> ways = {
      {problem.memory_bytes / request.stages_per_rank, problem.recompute}};
  if (problem.memory_bytes > 0 && problem.recompute == Recompute::kWhereNeeded) {
    ways.emplace_back(ways[0].first, Recompute::kNever);
    ways.emplace_back(0, Recompute::kNever);
    ways.emplace_back(0, Recompute::kAlways);
  } else if (problem.memory_bytes > 0) {
    ways.emplace_back(0, problem.recompute);
  }
  for (const int64_t devices : numbers_up_to(std::min(most, kMostTriedStages))) {
    if (devices < 2) continue;  // stages that share ranks are no neighbours
    Problem q = problem;
    q.states = &some;
    q.devices = devices * request.stages_per_rank;
    q.most_replicas = 1;
    q.least_stages = 1;
    q.replicated = false;
    q.all_devices = true;
    // Cut as on one level of equal devices, priced where they stand.
    q.inputs.levels.clear();
    q.inputs.speeds.clear();
    q.inputs.memories.clear();
    for (const auto& [memory_bytes, recompute] : ways) {
      q.memory_bytes = memory_bytes;
      q.recompute = recompute;
      if (std::optional<Solution> solution = search(q))
        found.push_back(named_as(numbers, std::move(*solution)));
    }
  }
  return found;
}

PlanRequest request_like(const Plan& plan) {
  PlanRequest request;
  request.schedule = plan.schedule;
  request.weights = plan.weights;
  if (weight_rule_facts(plan.weights).one_update_for_all) request.microbatches = plan.microbatches;
  const ScheduleFacts& schedule = schedule_facts(plan.schedule);
  if (schedule.several_stages) request.stages_per_rank = shape_of(plan).stages_per_rank;
  if (schedule.kind == ScheduleKind::kModelParallel) request.strategy = plan.schedule;
  return request;
}

RunRules rules_of(const PlanRequest& request) {
  return {request.schedule, request.weights, wants_intervals(request) ? request.microbatches : 0,
          request.stages_per_rank};
}

}  // namespace pipewright

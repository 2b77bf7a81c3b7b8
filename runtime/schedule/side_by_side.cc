#include "runtime/schedule/side_by_side.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/pipeline_rules.h"
#include "runtime/schedule/plan_check.h"

namespace pipewright {
namespace {

int64_t replicas_of(const Stage& stage) { return static_cast<int64_t>(stage.ranks.size()); }

}  // namespace

PipelineTurn turn_of(const Plan& plan, const SyncFacts& sync, int64_t replica) {
  if (sync.keeps_replicas_equal) return {};
  return {replica, replicas_of(plan.stages.front())};
}

Plan pipeline_of(const Plan& plan, PipelineTurn turn) {
  if (turn.count == 1) return plan;
  Plan own = plan;
  for (Stage& stage : own.stages) {
    stage.ranks = {stage.ranks.at(static_cast<size_t>(turn.index))};
    stage.shares.clear();
    stage.split.clear();
  }
  own.world_size = plan.world_size / turn.count;
  if (weight_rule_facts(plan.weights).one_update_for_all) own.microbatches /= turn.count;
  return own;
}

int64_t updates_in_flight(const Plan& pipeline, int64_t gradient_accumulation) {
  const int64_t interval =
      weight_rule_facts(pipeline.weights).one_update_for_all ? pipeline.microbatches : gradient_accumulation;
  return (pipeline.stages.front().in_flight + interval - 1) / interval;
}

void check_side_by_side(const Plan& plan, const std::string& sync, int64_t gradient_accumulation) {
  const SyncFacts& facts = sync_facts(sync);
  if (facts.keeps_replicas_equal) return;
  const std::string what = "sync '" + std::string(facts.name) + "'";
  if (weight_rule_facts(plan.weights).in_place) {
    throw PlanError(what + " does not go with weights '" + plan.weights +
                        "': minibatches in flight would see the averages",
                    "Give a plan with other weights, or --sync all-reduce.");
  }
  const int64_t count = replicas_of(plan.stages.front());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::string at = "stage " + std::to_string(s);
    if (replicas_of(stage) != count) {
      throw PlanError(what + " needs pipelines side by side, as many replicas of each stage: stage 0 has " +
                          std::to_string(count) + ", " + at + " has " + std::to_string(replicas_of(stage)),
                      "Give a plan with equal replicas, or --sync all-reduce.");
    }
    if (stage.splits()) {
      throw PlanError(what + ": " + at + " has `split`, and every pipeline trains minibatches of its own",
                      "Give a plan without split, or --sync all-reduce.");
    }
    if (std::any_of(stage.shares.begin(), stage.shares.end(),
                    [&](int64_t share) { return share != stage.shares.front(); })) {
      throw PlanError(what + ": " + at + " has uneven shares, and every pipeline trains as many minibatches",
                      "Give a plan without shares, or --sync all-reduce.");
    }
  }
  if (weight_rule_facts(plan.weights).one_update_for_all && plan.microbatches % count != 0) {
    throw PlanError(
        what + ": " + std::to_string(count) + " pipelines cannot divide an update interval of " +
            std::to_string(plan.microbatches) + " microbatches",
        "Give a plan with a multiple of " + std::to_string(count) + " microbatches, or --sync all-reduce.");
  }
  if (facts.averages_weights && count > 1 && !averages_whole_pipelines(sync) &&
      !plan.tied_parameters.empty()) {
    throw PlanError(what + ": each stage averages its weights with others, and the copies of '" +
                        plan.tied_parameters.front().name + "', which several stages hold, would differ",
                    facts.kind == SyncKind::kPartialReduce
                        ? "Give scope=pipeline: all stages then average with the same ones."
                        : "Give --sync partial-reduce:scope=pipeline, under which all stages average with "
                          "the same ones.");
  }
  try {
    check_plan_runs(pipeline_of(plan, {0, count}), gradient_accumulation);
  } catch (const PlanError& error) {
    throw PlanError(what + ": each pipeline by itself: " + error.what(), error.remedy());
  }
}

}  // namespace pipewright

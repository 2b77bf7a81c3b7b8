#include "optimizer/plan/frozen_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/pipeline_rules.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/renamed_ranks.h"
#include "optimizer/plan/replan.h"
#include "optimizer/plan/run_rules.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/turns.h"

namespace pipewright {
namespace {

bool has_intervals(const Plan& plan) { return weight_rule_facts(plan.weights).one_update_for_all; }

/// Minibatches of an update, of the stage with most that is trained.
int64_t update_of(const Plan& plan) {
  const PipelineShape shape = shape_of(plan);
  int64_t most = 0;
  for (int64_t s = shape.frozen_stages; s < shape.stages(); ++s)
    most = std::max(most, StageTurns(shape, s).round_length());
  return most;
}

int64_t most_replicas(const Plan& plan) {
  size_t most = 0;
  for (const Stage& stage : plan.stages) most = std::max(most, stage.ranks.size());
  return static_cast<int64_t>(most);
}

Topology of_devices(const Topology& topology, int64_t devices) {
  Topology fewer = topology;
  fewer.levels[0].count = devices;
  if (!fewer.devices.empty()) fewer.devices.resize(static_cast<size_t>(devices));
  return fewer;
}

class Search {
 public:
  Search(const Profile& frozen, const Topology& topology, const Plan& in_force, GlobalBatch global_batch)
      : frozen_(frozen), topology_(topology), in_force_(in_force), global_batch_(global_batch) {}

  /// Of all devices; where its updates would be of more minibatches than they may be, of fewer.
  std::optional<Plan> best() {
    const PlanRequest request = request_like(in_force_);
    try_with(topology_, request);
    if (best_ || global_batch_ == GlobalBatch::kGrow) return grown();
    PlanRequest straight = request;
    straight.strategy = "straight";
    if (schedule_facts(in_force_.schedule).kind == ScheduleKind::k1F1B) try_with(topology_, straight);
    for (int64_t devices = topology_.device_count() - 1; devices >= 1 && topology_.levels.size() == 1;
         --devices)
      try_with(of_devices(topology_, devices), request);
    return best_;
  }

 private:
  /// With as many more minibatches an update as there are more replicas.
  std::optional<Plan> grown() {
    if (!best_ || global_batch_ == GlobalBatch::kKeep || !has_intervals(in_force_)) return best_;
    PlanRequest request = request_like(in_force_);
    const int64_t factor = most_replicas(*best_) / std::max<int64_t>(1, most_replicas(in_force_));
    if (factor <= 1) return best_;
    request.microbatches = std::min(kMostInFlight, factor * in_force_.microbatches);
    try_with(topology_, request);
    return best_;
  }

  void try_with(const Topology& topology, const PlanRequest& request) {
    std::optional<Plan> found;
    try {
      found = make_plan(frozen_, topology, request);
      // On all devices, as it will run.
      found->predicted = evaluate_plan(*found, frozen_, topology_, request);
    } catch (const InfeasibleError&) {  // there is no such plan
      return;
    }
    if (global_batch_ == GlobalBatch::kKeep && update_of(*found) > update_of(in_force_)) return;
    if (best_ && best_->predicted->minibatch_seconds <= found->predicted->minibatch_seconds) return;
    best_ = std::move(found);
  }

  const Profile& frozen_;
  const Topology& topology_;
  const Plan& in_force_;
  GlobalBatch global_batch_;
  std::optional<Plan> best_;
};

}  // namespace

Plan with_frozen_stages(Plan plan, const Profile& frozen) {
  plan.frozen_layers = frozen.frozen.layers;
  plan.predicted.reset();
  std::set<std::string> prefix;
  for (size_t v = 0; v < frozen.frozen.nodes; ++v) prefix.insert(frozen.nodes[v].name);
  bool all = !schedule_facts(plan.schedule).several_stages;
  for (Stage& stage : plan.stages) {
    all = all && std::all_of(stage.nodes.begin(), stage.nodes.end(),
                             [&](const std::string& node) { return prefix.count(node) > 0; });
    stage.frozen = all;
    if (!all) continue;
    stage.recompute = false;
    stage.in_flight = 1;
  }
  return plan;
}

FrozenPlan plan_frozen(const Profile& measured, const Topology& topology, const Plan& in_force,
                       int64_t frozen_layers, bool cached, GlobalBatch global_batch) {
  const Profile frozen = frozen_profile(measured, frozen_layers, cached, "freeze");
  PlanRequest request = request_like(in_force);
  FrozenPlan solution;
  solution.plan = with_frozen_stages(in_force, frozen);
  // A cached prefix is one piece to the planner; a plan that cuts it runs all the same.
  const Profile priced = cached ? frozen_profile(measured, frozen_layers, false, "freeze") : frozen;
  try {
    solution.plan.predicted = evaluate_plan(solution.plan, frozen, topology, request);
  } catch (const PlanError&) {
    solution.plan.predicted = evaluate_plan(solution.plan, priced, topology, request);
  }
  solution.now_seconds = solution.next_seconds = solution.plan.predicted->minibatch_seconds;
  std::optional<Plan> next = Search(frozen, topology, in_force, global_batch).best();
  if (!next || kEquallyFast * next->predicted->minibatch_seconds > solution.now_seconds) return solution;
  const CostInputs inputs = requested_cost_inputs(frozen, topology, request);
  if (next->world_size == in_force.world_size)
    next = renamed_for_fewest_moves(in_force, std::move(*next), frozen, inputs);
  solution.changes = true;
  solution.next_seconds = next->predicted->minibatch_seconds;
  solution.update_growth =
      static_cast<double>(update_of(*next)) / static_cast<double>(std::max<int64_t>(1, update_of(in_force)));
  solution.move_seconds =
      move_seconds(profiled_moves(frozen, request.optimizer_slots, in_force, *next), inputs);
  solution.plan = std::move(*next);
  return solution;
}

}  // namespace pipewright

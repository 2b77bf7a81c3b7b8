#include "optimizer/plan/updates.h"

#include <algorithm>

#include "graph/pipeline_rules.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {

Updates updates_of(const Plan& plan) {
  Updates updates;
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.one_update_for_all) {
    updates.least_minibatches = updates.most_minibatches = plan.microbatches;
    updates.staleness = rule.drains() ? 0 : 1;
    return updates;
  }
  const PipelineShape shape = shape_of(plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const int64_t round = StageTurns(shape, static_cast<int64_t>(s)).round_length();
    updates.least_minibatches = s == 0 ? round : std::min(updates.least_minibatches, round);
    updates.most_minibatches = std::max(updates.most_minibatches, round);
    // Minibatches in flight were read with the weights before theirs.
    const int64_t depth = rule.lag == WeightLag::kFirstStage ? plan.first_trained_depth() : stage.in_flight;
    if (schedule_facts(plan.schedule).kind != ScheduleKind::kModelParallel)
      updates.staleness = std::max(updates.staleness, depth - 1);
  }
  if (rule.bounds_crossing) updates.staleness = std::min<int64_t>(updates.staleness, 1);
  return updates;
}

}  // namespace pipewright

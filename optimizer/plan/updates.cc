#include "optimizer/plan/updates.h"

#include <algorithm>
#include <numeric>

#include "graph/pipeline_rules.h"

namespace pipewright {

Updates updates_of(const Plan& plan) {
  Updates updates;
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.one_update_for_all) {
    updates.least_minibatches = updates.most_minibatches = plan.microbatches;
    updates.staleness = rule.drains() ? 0 : 1;
    return updates;
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    auto round = static_cast<int64_t>(stage.ranks.size());
    if (stage.splits()) round = 1;
    if (!stage.shares.empty()) round = std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0});
    updates.least_minibatches = s == 0 ? round : std::min(updates.least_minibatches, round);
    updates.most_minibatches = std::max(updates.most_minibatches, round);
    // Minibatches in flight were read with the weights before theirs.
    const int64_t depth = rule.lag == WeightLag::kFirstStage ? plan.first_trained_depth() : stage.in_flight;
    if (schedule_facts(plan.schedule).kind != ScheduleKind::kModelParallel)
      updates.staleness = std::max(updates.staleness, depth - 1);
  }
  return updates;
}

}  // namespace pipewright

#include "graph/synchronous_plan.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/pipeline_rules.h"

namespace pipewright {

int64_t synchronous_replicas(const Plan& plan, const std::string& program) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw PlanError("plan: " + program + " cannot hold " + what, remedy);
  };
  if (!weight_rule_facts(plan.weights).drains())
    refuse("weights '" + plan.weights + "': there every update waits until the pipeline is empty",
           "Plan with a schedule that drains, such as --schedule 1f1b-flush.");
  const auto replicas = static_cast<int64_t>(plan.stages[0].ranks.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    const std::string of_stage = " (stage " + std::to_string(s) + ")";
    if (static_cast<int64_t>(stage.ranks.size()) != replicas)
      refuse(std::to_string(stage.ranks.size()) + " replicas" + of_stage + " beside " +
                 std::to_string(replicas) + " of stage 0",
             "Plan with --strategy straight, or --replicas that are equal.");
    if (std::any_of(stage.shares.begin(), stage.shares.end(),
                    [&](int64_t share) { return share != stage.shares.front(); }))
      refuse("shares" + of_stage, "Leave `shares` out of the plan.");
    if (stage.splits()) refuse("split" + of_stage, "Leave `split` out of the plan.");
    if (stage.frozen) refuse("frozen stages" + of_stage, "Leave `frozen` out of the plan.");
    if (stage.recompute)
      refuse("recomputation" + of_stage,
             "Plan with --recompute never; what is recomputed is said there in another place.");
  }
  if (plan.microbatches % replicas != 0)
    refuse(std::to_string(plan.microbatches) + " microbatches an update on " + std::to_string(replicas) +
               " replicas, which each take as many",
           "Plan with --microbatches that is a multiple of " + std::to_string(replicas) + ".");
  return replicas;
}

}  // namespace pipewright

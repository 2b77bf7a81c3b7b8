// Does a plan run? The one answer that the optimizer's `check` and the runtime both give, before anything
// starts. Whether the plan fits its model is check_plan_for_graph() of graph/plan.h.
#pragma once

#include "graph/plan.h"
#include "runtime/schedule/check.h"

namespace pipewright {

/// PlanError unless schedule, version rule, shares, ranks and depths of the plan go together and a dry run of
/// it ends with every minibatch done once, in order, on the right replica, within the depth, with the
/// versions of the rule. The message says what is wrong, the remedy what to change.
ScheduleCheck check_plan_runs(const Plan& plan, int64_t gradient_accumulation = 1);

/// `plan`, which runs, with the depths that it really uses: where its first stages freeze, they limit the
/// others no more, which would run further ahead than the plan meant.
Plan with_used_depths(Plan plan);

}  // namespace pipewright

#include "runtime/schedule/plan_check.h"

#include "graph/error.h"
#include "runtime/schedule/plan_shape.h"

namespace pipewright {

ScheduleCheck check_plan_runs(const Plan& plan, int64_t gradient_accumulation) {
  check_schedule_and_weights(plan);
  const PipelineShape shape = shape_of(plan, gradient_accumulation);
  check_schedule_shape(plan.schedule, shape);
  ScheduleCheck check = check_schedule(plan.schedule, shape, rehearsal_span(shape));
  if (check.completes && check.problem.empty()) return check;
  throw PlanError("plan: schedule '" + plan.schedule + "' does not work: " + check.problem,
                  "Raise in_flight of the stages before the one that waits, or plan again.");
}

}  // namespace pipewright

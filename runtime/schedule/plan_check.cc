#include "runtime/schedule/plan_check.h"

#include "graph/error.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

ScheduleCheck check_plan_runs(const Plan& plan, int64_t gradient_accumulation) {
  check_schedule_and_weights(plan);
  const PipelineShape shape = shape_of(plan, gradient_accumulation);
  check_schedule_shape(plan.schedule, shape);
  ScheduleCheck check = check_schedule(plan.schedule, shape, rehearsal_span(shape));
  if (check.completes && check.problem.empty()) return check;
  throw PlanError("plan: schedule '" + plan.schedule + "' does not work: " + check.problem,
                  plan.order.empty()
                      ? "Raise in_flight of the stages before the one that waits, or plan again."
                      : "Change its order: a rank that waits is to do first what others wait for.");
}

Plan with_used_depths(Plan plan) {
  const std::vector<int64_t> depths = schedule_named(plan.schedule).depths(shape_of(plan));
  for (size_t s = 0; s < depths.size(); ++s) plan.stages[s].in_flight = depths[s];
  return plan;
}

}  // namespace pipewright

#include "runtime/schedule/rank_moments.h"

#include <set>

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<std::vector<StageMoment>> rank_moments(const std::string& schedule, const PipelineShape& shape,
                                                   int64_t group, int64_t replica) {
  std::vector<StageMoment> now(static_cast<size_t>(shape.stages()));
  std::set<std::vector<StageMoment>> seen;
  for (const Action& action : schedule_named(schedule).make(shape, group, replica, {0, shape.microbatches})) {
    if (is_of_round(action.kind)) continue;
    const int64_t s = action.stage_or(group);
    StageMoment& own = now[static_cast<size_t>(s)];
    StageMoment* const before = s > 0 && !shape.crosses_ranks(s - 1) ? &own - 1 : nullptr;
    StageMoment* const behind = s + 1 < shape.stages() && !shape.crosses_ranks(s) ? &own + 1 : nullptr;
    const bool forward = action.kind == ActionKind::kForward;
    const bool back = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
    if (forward) ++own.in_flight;
    if (forward && before) --before->left_values;
    if (action.kind == ActionKind::kBackwardInput) ++own.waiting;
    if (back && before) ++own.left_gradients;
    own.runs = true;
    seen.insert(now);
    own.runs = false;
    if (forward && behind) ++own.left_values;
    if (back && behind) --behind->left_gradients;
    if (action.kind == ActionKind::kBackwardWeight) --own.waiting;
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) --own.in_flight;
  }
  return {seen.begin(), seen.end()};
}

}  // namespace pipewright

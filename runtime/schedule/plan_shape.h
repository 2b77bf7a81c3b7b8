// What schedules need to know of a plan.
#pragma once

#include "graph/plan.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// The shape of a plan, for a run with this `gradient_accumulation`. InputError for an unknown version rule.
PipelineShape shape_of(const Plan& plan, int64_t gradient_accumulation = 1);

}  // namespace pipewright

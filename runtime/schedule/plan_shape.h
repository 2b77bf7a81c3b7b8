// What schedules need to know of a plan.
#pragma once

#include "graph/plan.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// The shape of a plan, for a run with this `gradient_accumulation`. InputError for an unknown version rule.
PipelineShape shape_of(const Plan& plan, int64_t gradient_accumulation = 1);

/// The rank that is replica `replica` of a stage. The only home of it: the ranks of a plan stand in any
/// order, and a shape does not know them (placements() numbers its own).
int64_t rank_of(const Plan& plan, int64_t stage, int64_t replica);
/// The rank that processes a minibatch at a stage; `shape` is the plan's.
int64_t rank_of_minibatch(const Plan& plan, const PipelineShape& shape, int64_t stage, int64_t minibatch);
/// Ascending, each once.
std::vector<int64_t> ranks_of(const Plan& plan);
/// The first stage of a rank of the plan.
int64_t first_stage_of(const Plan& plan, int64_t rank);

}  // namespace pipewright

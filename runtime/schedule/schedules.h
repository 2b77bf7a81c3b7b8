// The functions behind the table of schedule.cc, one file each.
#pragma once

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<Action> one_f_one_b(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> model_parallel(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> forward_only(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);

/// The list that 1f1b and model-parallel share: replica `replica` of a stage with `replicas` replicas keeps
/// the minibatches of at most `depth` rounds in flight.
std::vector<Action> alternate(int64_t replicas, int64_t replica, int64_t depth, Span span);

}  // namespace pipewright

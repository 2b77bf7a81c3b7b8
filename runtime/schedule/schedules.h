// The functions behind the table of schedule.cc, one file each.
#pragma once

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<Action> one_f_one_b(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> model_parallel(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> forward_only(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);

}  // namespace pipewright

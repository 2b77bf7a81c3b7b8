// The functions behind the table of schedule.cc, one file each.
#pragma once

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<Action> one_f_one_b(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> model_parallel(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<Action> gpipe(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> gpipe_depths(const PipelineShape& shape);
std::vector<Action> one_f_one_b_flush(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> one_f_one_b_flush_depths(const PipelineShape& shape);
std::vector<Action> interleaved(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> interleaved_depths(const PipelineShape& shape);
std::vector<Action> zb_h1(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> zb_h1_depths(const PipelineShape& shape);
std::vector<Action> zb_v(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> zb_v_depths(const PipelineShape& shape);
std::vector<Action> dual_pipe_v(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> dual_pipe_v_depths(const PipelineShape& shape);
std::vector<Action> custom(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);
std::vector<int64_t> custom_depths(const PipelineShape& shape);
/// PlanError unless the shape's order has a list for each group of ranks, each stage of which runs every
/// microbatch forward and backward once, in rising order, on one replica, and none is frozen. Whether all
/// lists together end is for check_schedule().
void check_custom_order(const PipelineShape& shape);
std::vector<Action> forward_only(const PipelineShape& shape, int64_t stage, int64_t replica, Span span);

}  // namespace pipewright

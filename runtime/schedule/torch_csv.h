// Schedules of PyTorch: the CSV of _PipelineScheduleRuntime of torch.distributed.pipelining (_load_csv,
// _dump_csv; torch 2.11, torch/distributed/pipelining/schedules.py). Independent implementation from the
// format:
//
//   0F0,0F1,,0B0,,0B1          a line for each rank of the pipeline, in order: what it does in one step,
//   ,1F0,1B0,1F1,1B1           STAGE KIND MICROBATCH; an empty cell is idle time
//
// Kinds: F; B, or I and W, the backward whole and in its two parts; "(2F3;5B1)OVERLAP_F_B", two of them at
// once. Format "compute_only" has these, "compute_comms" also SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD,
// RESHARD and REDUCE_GRAD, which PyTorch adds where they are missing. A step trains all microbatches and ends
// with an update: one interval of a plan with weights `flush`.
#pragma once

#include <string>

#include "graph/plan.h"

namespace pipewright {

/// The schedule of a plan as "compute_only"; of a plan with r replicas of every stage that of one pipeline,
/// with an r-th of the microbatches. Line k is rank k of that pipeline, its ranks in rising order. PlanError
/// unless the plan runs (check_plan_runs), as synchronous_replicas(), for tied parameters, which PyTorch does
/// not sum over stages, and where the ranks of the replicas are not in one order.
std::string torch_csv_text(const Plan& plan);

/// True for a text whose first cell with something in it is an action.
bool looks_like_torch_csv(const std::string& text);

/// `stages` as the schedule runs it: schedule `custom`, one rank of each stage, depths that the schedule
/// takes. Of "compute_comms" messages are left out: they follow from the rest, here as there. Of two actions
/// at once the first runs first. InputError with line and cell of what is no action or too much, and for
/// stages that are not s, s + p, ... or s and 2p - 1 - s on the ranks 0 to p - 1 in any order; PlanError if
/// `stages` has another number of stages, or frozen ones, and for a schedule that does not work, as
/// check_plan_runs().
Plan plan_of_torch_csv(const std::string& text, const std::string& where, const Plan& stages);

}  // namespace pipewright

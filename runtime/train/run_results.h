// What a training run leaves at its end: each rank's figures, the summary and the trace.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "models/memory/memory_meter.h"
#include "runtime/generation/emulated_plan.h"
#include "runtime/journal/journal.h"
#include "runtime/side_by_side/group_scheduler.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// What the workers of a rank counted under the plans that were in force before.
struct EarlierWorkers {
  WorkerCounts counts;
  int64_t stage = 0, replica = 0;  ///< of the last one
  int64_t peak_in_flight = 0;
  int64_t peak_weight_versions = 0;
  int64_t updates = 0;  ///< of the last one

  /// `emulated`: what the worker evaluates for, if the plan is emulated.
  void add(const Worker& worker, const EmulatedPlan* emulated = nullptr);
};

/// `worker`: of `plan`, the one in force at the end; null for a rank without a part in it, of whose weights
/// nothing is said then. `times`: all of training but the busy seconds, which the workers have counted.
/// `emulated`: as EarlierWorkers::add().
RankSummary summary_of_rank(int64_t rank, const Plan& plan, const Worker* worker, EarlierWorkers workers,
                            const MemoryMeter& memory, MeasuredTimes times, c10::Device device,
                            const EmulatedPlan* emulated = nullptr);

/// What became of --cuda-graphs on a rank: "used", "not used: " and why, or both.
std::string cuda_graphs_text(const Worker& worker);

/// What a run's end says of the whole.
struct RunEnd {
  std::string status;
  int64_t world_size = 1;
  double wall_seconds = 0;
  std::string sync;            ///< Run::sync
  GroupStatistics groups;      ///< what was decided for pipelines that average by arrival
  double minibatch_flops = 0;  ///< of training
  bool emulated = false;
};

/// Writes summary.json and trace.json, of what the closed journal has heard; returns the summary.
/// `plan`: the one in force at the end.
Summary write_results(const std::filesystem::path& folder, const Plan& plan, const Journal& journal,
                      const RunEnd& end);

/// NumericalError that names the first two replicas of a stage that ended with different weights: each update
/// of theirs is made from the same sums.
void demand_equal_replicas(const Summary& summary);

}  // namespace pipewright

// What a training run leaves at its end: each rank's figures, the summary and the trace.
#pragma once

#include <filesystem>

#include "models/memory_meter.h"
#include "runtime/job.h"
#include "runtime/journal.h"
#include "runtime/place.h"
#include "runtime/worker.h"

namespace pipewright {

/// `times`: all of training but the busy seconds, which the worker has counted.
RankSummary summary_of_rank(const Job& job, const Place& place, const Worker& worker,
                            const MemoryMeter& memory, MeasuredTimes times);

/// What became of --cuda-graphs on a rank: "used", "not used: " and why, or both.
std::string cuda_graphs_text(const Worker& worker);

/// Writes summary.json and trace.json, of what the closed journal has heard; returns the summary.
Summary write_results(const std::filesystem::path& folder, const Job& job, const Journal& journal,
                      const std::string& status, double wall_seconds);

/// NumericalError that names the first two replicas of a stage that ended with different weights: each update
/// of theirs is made from the same sums.
void demand_equal_replicas(const Summary& summary);

}  // namespace pipewright

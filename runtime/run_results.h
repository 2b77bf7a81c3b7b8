// What a training run leaves at its end: each rank's figures, the summary and the trace.
#pragma once

#include <filesystem>

#include "models/memory_meter.h"
#include "runtime/job.h"
#include "runtime/journal.h"
#include "runtime/place.h"
#include "runtime/worker.h"

namespace pipewright {

/// trained_seconds: wall time within Worker::train().
RankSummary summary_of_rank(const Job& job, const Place& place, const Worker& worker,
                            const MemoryMeter& memory, double trained_seconds);

/// summary.json and trace.json, of what the closed journal has heard.
void write_results(const std::filesystem::path& folder, const Job& job, const Journal& journal,
                   const std::string& status, double wall_seconds);

}  // namespace pipewright

// One rank's training run, from the start line to the summary.
#pragma once

#include "runtime/job.h"
#include "runtime/place.h"

namespace pipewright {

/// Trains `job` as the rank that `place` says and writes the run folder (docs/formats.md); rank 0 reports
/// progress on standard error. Throws what ended the run: JobEnded with the exit code of an interruption,
/// PeerError when another rank failed, this rank's own error otherwise. Whatever was written before stays.
/// Sets the number of compute threads of the process.
void train(const Job& job, const Place& place);

}  // namespace pipewright

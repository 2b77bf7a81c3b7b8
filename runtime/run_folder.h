// The folder that a run writes.
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/checkpoint.h"

namespace pipewright {

/// Makes the folder, and removes from it what an earlier run left that this one may not overwrite:
/// summary.json, trace.json, metrics.jsonl (unless the run goes on from a checkpoint: the journal then keeps
/// its past), flight/ and the ranks' logs. Checkpoints that are not the run's past are moved aside. Other
/// files stay. RunError if that cannot be done.
void make_run_folder(const std::filesystem::path& folder, const std::optional<Checkpoint>& resume);

}  // namespace pipewright

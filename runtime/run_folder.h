// The folder that a run writes.
#pragma once

#include <filesystem>

namespace pipewright {

/// Makes the folder, and removes from it what an earlier run left that this one may not overwrite:
/// summary.json, trace.json, metrics.jsonl, flight/ and the ranks' logs. Other files stay. RunError if that
/// cannot be done.
void make_run_folder(const std::filesystem::path& folder);

}  // namespace pipewright

// The newest state of a run, kept in the memory of its host: checkpoints like those of the run folder,
// written every few minibatches, of which only the last whole one stays. It outlives the processes of the
// ranks, so that a job that has lost one goes on from there. docs/recovery.md
#pragma once

#include <cstdint>
#include <filesystem>

namespace pipewright {

/// RUN/.kept, whose checkpoints/ holds them: a link into the host's memory (/dev/shm), or a folder on the
/// disk.
std::filesystem::path kept_state_of(const std::filesystem::path& run_folder);

/// Makes room for it, empty: in memory if that has room for `bytes` and the ranks are all `on_one_host`, else
/// beside the run, with a line on standard error that says why. What an earlier run left there goes. RunError
/// if it cannot be made.
void make_kept_state(const std::filesystem::path& run_folder, int64_t bytes, bool on_one_host);

/// Gives the room back, as far as it goes.
void remove_kept_state(const std::filesystem::path& run_folder) noexcept;

/// Of a job that ends before its end: what is kept and newer than all checkpoints of the run folder becomes
/// one of these. Its folder, or "" where there is nothing newer. RunError if it cannot be written.
std::filesystem::path save_kept_state(const std::filesystem::path& run_folder);

}  // namespace pipewright

// Writing checkpoints: every stage its file, rank 0 the manifest, old ones go.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/safetensors.h"
#include "runtime/checkpoint.h"

namespace pipewright {

/// Where a checkpoint is put together: hidden until it is whole.
std::filesystem::path partial_checkpoint(const std::filesystem::path& run_folder, int64_t next_minibatch);

/// Writes a stage's file into the partial checkpoint, which is made if it is not there. RunError (disk full).
CheckpointFile write_stage_file(const std::filesystem::path& run_folder, int64_t next_minibatch,
                                int64_t stage, const NamedTensors& tensors, int64_t updates);

/// What every rank tells rank 0 when it has reached minibatch N, as the last of its lines before it goes on:
/// replica 0 of a stage with the file it wrote, by stage.
std::string checkpoint_line(int64_t next_minibatch, const std::map<int64_t, CheckpointFile>& files);

/// Rank 0's part: completes a checkpoint when all ranks have reached it. So whatever ranks reported before it
/// (losses, evaluations) has been reported when the manifest appears.
class CheckpointKeeper {
 public:
  /// keep: whole checkpoints that stay, the latest ones.
  CheckpointKeeper(std::filesystem::path run_folder, int64_t world_size, int64_t keep);

  /// False if the line is no checkpoint_line(). From any thread.
  bool take(const std::string& line);

  /// `manifest` lacks its stages. The one before is complete.
  void begin(CheckpointManifest manifest);
  bool pending() const { return pending_.has_value(); }
  /// Completes the pending checkpoint if all ranks have reached it: manifest, rename, older ones removed.
  /// RunError; what was whole before stays whole. The folder of what it completed, or nothing.
  std::optional<std::filesystem::path> poll();
  /// Waits until poll() has completed the pending one; calls `check` meanwhile, which may throw.
  std::optional<std::filesystem::path> wait(const std::function<void()>& check);

 private:
  void complete(std::map<int64_t, CheckpointFile> files);
  void remove_old() const;

  const std::filesystem::path run_folder_;
  const int64_t world_size_;
  const int64_t keep_;
  std::optional<CheckpointManifest> pending_;

  struct Reached {
    int64_t ranks = 0;
    std::map<int64_t, CheckpointFile> files;  // by stage
  };
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<int64_t, Reached> reached_;  // by N
};

/// Before a run: removes what earlier ones left half written. A run that does not go on from one of this
/// folder's checkpoints, or from an earlier one than the latest, moves those that are not its own past aside,
/// to checkpoints-1, -2, ... `resume`: what the run goes on from. Says what it moves on standard error.
void prepare_checkpoints(const std::filesystem::path& run_folder, const std::optional<Checkpoint>& resume);

/// Best effort, after a failure: gives the room of a half-written checkpoint back.
void remove_partial_checkpoints(const std::filesystem::path& run_folder);

}  // namespace pipewright

// Writing checkpoints: every stage its file, rank 0 the manifest, old ones go.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/messages/rank_message.h"

namespace pipewright {

/// Where a checkpoint is put together: hidden until it is whole.
std::filesystem::path partial_checkpoint(const std::filesystem::path& run_folder, int64_t next_minibatch);

/// Writes a file into the partial checkpoint, which is made if it is not there: `name`.safetensors; over a
/// file of the like from a spare checkpoint (CheckpointKeeper), if there is one. RunError (disk full; a run
/// folder that has gone, which does not come back for it).
CheckpointFile write_checkpoint_file(const std::filesystem::path& run_folder, int64_t next_minibatch,
                                     const std::string& name, const NamedTensors& tensors);

/// Rank 0's part: completes a checkpoint when all ranks of its plan have written theirs. So whatever ranks
/// reported before that (losses, evaluations) has been reported when the manifest appears. Several can be
/// incomplete at once, as ranks reach a minibatch at different times; they are completed in order.
class CheckpointKeeper {
 public:
  /// keep: whole checkpoints that stay, the latest ones. `spares`: of those that go the last one's files stay
  /// as well, to be overwritten by the next: where they lie in memory that is cheaper.
  CheckpointKeeper(std::filesystem::path run_folder, int64_t keep, bool spares = false);

  /// What a rank has written. From any thread.
  void take(CheckpointPart part);

  /// `manifest` lacks its stages. Minibatches ascend.
  void begin(CheckpointManifest manifest);
  size_t pending() const { return pending_.size(); }  ///< that have begun and are not whole
  /// Sees to it that the first pending checkpoint is completed, by a thread of its own, if all ranks have
  /// written it: manifest, rename, older ones removed. The folder of one that has been since, or nothing.
  /// RunError; what was whole before stays whole.
  std::optional<std::filesystem::path> poll();
  /// Waits until poll() has seen the first pending one completed; calls `check` meanwhile, which may throw.
  std::optional<std::filesystem::path> wait(const std::function<void()>& check);
  /// After a failure, the last call: completes what all ranks have written, gives the room of what they have
  /// not back, as far as it goes.
  void settle() noexcept;

 private:
  using Stages = std::map<int64_t, CheckpointStage>;  // by number

  std::filesystem::path complete(CheckpointManifest manifest, Stages stages) const;
  void remove_old() const;

  const std::filesystem::path run_folder_;
  const int64_t keep_;
  const bool spares_;
  std::deque<CheckpointManifest> pending_;
  std::future<std::filesystem::path> completed_;  // of the first of them

  struct Written {
    int64_t ranks = 0;
    Stages stages;
  };
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<int64_t, Written> written_;  // by N
};

/// It is not seen half removed.
void remove_checkpoint(const std::filesystem::path& folder);

/// Best effort, before a run and after a failure: gives the room of half-written checkpoints back.
void remove_partial_checkpoints(const std::filesystem::path& run_folder);

}  // namespace pipewright

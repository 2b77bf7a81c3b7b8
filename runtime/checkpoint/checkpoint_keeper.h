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

/// N of such a folder; nothing for other names.
std::optional<int64_t> minibatch_of_partial(const std::filesystem::path& folder);

/// Makes it, if it is not there. RunError (disk full; a run folder that has gone, which does not come back
/// for it).
void make_partial_checkpoint(const std::filesystem::path& run_folder, int64_t next_minibatch);

/// The file of the spare checkpoint (CheckpointKeeper) over which one of this name may be written; of a
/// version of a stage's weights any of its versions. It need not be there.
std::filesystem::path spare_file(const std::filesystem::path& run_folder, const std::string& name);

/// Writes a file into the partial checkpoint, which is made if it is not there: `name`.safetensors; over a
/// spare_file(), if there is one. RunError as make_partial_checkpoint().
CheckpointFile write_checkpoint_file(const std::filesystem::path& run_folder, int64_t next_minibatch,
                                     const std::string& name, const NamedTensors& tensors);

/// Rank 0's part: completes a checkpoint when all ranks of its plan have written theirs. So whatever ranks
/// reported before that (losses, evaluations) has been reported when the manifest appears. Several can be
/// incomplete at once, as ranks reach a minibatch at different times; they are completed in order.
class CheckpointKeeper {
 public:
  /// One that cannot be completed, as a rank could not write its part (CheckpointPart::lost) or what was
  /// written has gone.
  using Lost = std::function<void(int64_t next_minibatch, const std::string& why)>;
  /// keep: whole checkpoints that stay, the latest ones. `spares`: of those that go the last one's files stay
  /// as well, to be overwritten by the next: where they lie in memory that is cheaper. `lost`: told on the
  /// thread that polls; without it a RunError ends the run.
  CheckpointKeeper(std::filesystem::path run_folder, int64_t keep, bool spares = false, Lost lost = {});

  /// From now on parts of a checkpoint may lie on other hosts: `tell` says to these that one is whole, by its
  /// manifest, on the thread that completes it. Empty: all files are here again. With nothing pending.
  using Tell = std::function<void(int64_t next_minibatch, const std::filesystem::path& manifest)>;
  void share(Tell tell) { tell_ = std::move(tell); }
  /// What a rank has written. From any thread.
  void take(CheckpointPart part);

  /// `manifest` lacks its stages. Minibatches ascend.
  void begin(CheckpointManifest manifest);
  size_t pending() const { return pending_.size(); }  ///< that have begun, are not whole, and may become so
  /// Sees to it that the first pending checkpoint is completed, by a thread of its own, if all ranks have
  /// written it: manifest, rename, older ones removed. The folder of one that has been since, or nothing.
  /// RunError; what was whole before stays whole.
  std::optional<std::filesystem::path> poll();
  /// Waits until poll() has seen the first pending one completed, or lost; calls `check` meanwhile, which may
  /// throw.
  std::optional<std::filesystem::path> wait(const std::function<void()>& check);
  /// After a failure, the last call: completes what all ranks have written, gives the room of what they have
  /// not back, as far as it goes.
  void settle() noexcept;

 private:
  using Stages = std::map<int64_t, CheckpointStage>;  // by number

  std::filesystem::path complete(CheckpointManifest manifest, Stages stages) const;
  std::optional<std::filesystem::path> take_completed();
  void lose(int64_t next_minibatch, const std::string& why);
  const std::filesystem::path run_folder_;
  const int64_t keep_;
  const bool spares_;
  const Lost lost_;
  Tell tell_;
  std::deque<CheckpointManifest> pending_;
  std::future<std::filesystem::path> completed_;  // of the first of them

  struct Written {
    int64_t ranks = 0;
    Stages stages;
    std::string lost;  // why, of the first that said so
  };
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<int64_t, Written> written_;  // by N
};

/// The partial checkpoint, with its manifest in it, becomes a whole one, and of whole ones the latest `keep`
/// stay; partial ones of minibatches before it, which were lost, go. `spares` as CheckpointKeeper. RunError.
std::filesystem::path take_for_whole(const std::filesystem::path& run_folder, int64_t next_minibatch,
                                     int64_t keep, bool spares = false);

/// It is not seen half removed.
void remove_checkpoint(const std::filesystem::path& folder);

/// Best effort, before a run and after a failure: gives the room of half-written checkpoints back.
void remove_partial_checkpoints(const std::filesystem::path& run_folder);

}  // namespace pipewright

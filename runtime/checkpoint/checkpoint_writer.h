// A rank's part of checkpoints, written beside the training by a thread of its own.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/kept_state.h"
#include "runtime/messages/rank_message.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// Whose state it is. Borrows the program, which names its tensors.
struct StatePlace {
  StatePlace(int64_t stage, int64_t replica, const StageProgram& program)
      : stage(stage), replica(replica), program(program) {}
  StatePlace(const StageReplica& stage) : StatePlace(stage.stage(), stage.replica(), stage.program()) {}

  int64_t stage, replica;
  const StageProgram& program;
};

/// Called by one thread. Checkpoints are written one after the other. Tensors are held, not copied, until
/// they are on the disk; they are let go on the calling thread, so that what is written into their memory
/// afterwards is in order.
class CheckpointWriter {
 public:
  struct Settings {
    std::filesystem::path run_folder;
    bool older_versions = true;  ///< false: the latest is enough (checkpoint.versions)
    /// Tells rank 0 that the rank's files are there.
    std::function<void(CheckpointPart)> post;
    /// Called now and then while an earlier checkpoint is waited for; may throw.
    std::function<void()> check;
    /// Of the state for lost ranks, the folder `run_folder`, borrowed: what cannot be written there is told
    /// as lost and ends nothing. Else null.
    KeptFolder* kept = nullptr;
    /// Called by the writing thread with the files that it has written of the checkpoint of minibatch n,
    /// before rank 0 is told; may be empty, and may throw.
    std::function<void(int64_t n, const std::vector<CheckpointFile>& files)> written = {};
  };
  explicit CheckpointWriter(Settings settings) : settings_(std::move(settings)) {}
  ~CheckpointWriter() { settle(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// From now on this process has so many, each replica counted.
  void set_stages(size_t stages) { stages_ = stages; }
  /// A stage of this process before minibatch n. When those of all its stages are there they are written,
  /// after the checkpoint before, which is waited for. `drained`: the buffers of all replicas are equal.
  /// Errors of an earlier checkpoint: RunError (disk full).
  void take(int64_t n, const StatePlace& place, StageState state, bool drained);
  /// Posts what has been written since. RunError.
  void poll();
  /// Until nothing is being written. RunError, and what `check` throws.
  void wait();
  /// The last call, also after a failure: waits, and posts what could be written.
  void settle() noexcept;

 private:
  // What one replica of a stage writes.
  struct Part {
    int64_t stage = 0;
    int64_t replica = 0;
    int64_t updates = 0;
    NamedTensors state;                        // replica 0
    std::map<int64_t, NamedTensors> versions;  // by number
    NamedTensors buffers;                      // of another replica
  };

  void start(int64_t n, std::vector<Part> parts);
  void finish();
  CheckpointPart write_all() const;
  CheckpointPart write_parts() const;
  static CheckpointStage write(const std::filesystem::path& run_folder, int64_t n, const Part& part);

  const Settings settings_;
  size_t stages_ = 1;
  std::map<int64_t, std::vector<Part>> collected_;  // by n: not all stages of the rank have come
  int64_t writing_ = 0;                             // n
  std::vector<Part> parts_;                         // of what is being written
  std::future<CheckpointPart> written_;
};

}  // namespace pipewright

// The checkpoints of one place, as a rank has part in them: the run folder's, and those of the state that is
// kept in memory (kept_state.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_keeper.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/state_copies.h"
#include "runtime/coordinator/run_points.h"

namespace pipewright {

/// Called by the thread that trains, but for take(). A state for lost ranks that cannot be kept ends nothing:
/// a line on standard error says so, and another that a later one is kept again.
class CheckpointSeries {
 public:
  struct Settings {
    std::filesystem::path folder;              ///< checkpoints/ is made in it
    CheckpointSettings points;                 ///< when they are due, how many stay, and with which versions
    KeptFolder* kept = nullptr;                ///< of the state for lost ranks: `folder`, borrowed
    size_t most_pending = 1;                   ///< not whole yet: a further one waits for them
    std::function<void(CheckpointPart)> post;  ///< to rank 0
    std::function<void()> check;               ///< called in every wait; may throw
  };
  explicit CheckpointSeries(Settings settings);
  CheckpointSeries(const CheckpointSeries&) = delete;
  CheckpointSeries& operator=(const CheckpointSeries&) = delete;
  ~CheckpointSeries();

  /// Rank 0, before any message is taken: it puts the checkpoints together.
  void keep();
  /// Rank 0: what a rank has written, of this series or another. Any thread.
  void take(const CheckpointPart& part) {
    if (keeper_ && part.kept == (settings_.kept != nullptr)) keeper_->take(part);
  }

  /// From now on the ranks write each into the folder of their own host, and a part counts as written when
  /// its copy is there too. On all ranks of the plan, with nothing begun.
  void begin_copies(std::unique_ptr<StateCopies> copies);
  /// complete(), on all ranks of the plan, and all write into one folder again. Nothing without copies.
  void end_copies();

  const CheckpointSettings& points() const { return settings_.points; }
  /// From now on the rank has so many stages.
  void set_stages(size_t stages) { writer_.set_stages(stages); }
  /// This rank begins the checkpoint that `manifest` says, which lacks its stages; on other ranks than 0
  /// nothing happens. Waits for earlier ones, which lie behind this rank, so that nobody is held up.
  void begin(const std::function<CheckpointManifest()>& manifest);
  /// As CheckpointWriter::take().
  void write(int64_t n, const StatePlace& place, StageState state, bool drained) {
    writer_.take(n, place, std::move(state), drained);
  }
  /// What has been written meanwhile is told, and completed.
  void advance();
  /// Until all that were begun are whole.
  void complete();
  /// The last words of this rank: what could be written is told.
  void settle_writer() noexcept;
  /// Rank 0, the last call after a failure.
  void settle() noexcept;
  /// Rank 0: the folder of the last that became whole; "" = none yet.
  const std::filesystem::path& last() const { return last_; }

 private:
  void check() const;
  void note(const std::optional<std::filesystem::path>& whole);
  void tell_lost(int64_t next_minibatch, const std::string& why);

  const Settings settings_;
  std::unique_ptr<StateCopies> copies_;  // where parts lie on several hosts
  CheckpointWriter writer_;
  std::unique_ptr<CheckpointKeeper> keeper_;  // rank 0
  std::filesystem::path last_;
  bool lost_ = false;  // those since last_
};

}  // namespace pipewright

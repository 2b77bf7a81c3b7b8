// A rank's part in the checkpoints of its run: those of the run folder, and the state that is kept in memory
// for lost ranks (--on-loss).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_series.h"
#include "runtime/coordinator/training_loop.h"
#include "runtime/job/job.h"
#include "runtime/launch/place.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Called by the thread that trains, but for take().
class RunCheckpoints {
 public:
  struct Settings {
    const Job& job;  ///< borrowed
    Place place;
    int64_t first_minibatch = 0;               ///< of this training
    std::function<void(CheckpointPart)> post;  ///< to rank 0
    std::function<void()> check;               ///< called in every wait; may throw
    /// On a rank 0 whose ranks are on several hosts: the newest state that is kept whole, by its minibatch.
    std::function<void(int64_t minibatch)> newest_kept;
  };
  explicit RunCheckpoints(Settings settings);

  /// When checkpoints of each kind are due.
  std::map<CheckpointKind, CheckpointSettings> points() const;
  /// State is kept for lost ranks.
  bool keeps_state() const { return kept_ != nullptr; }

  // Rank 0.
  /// Before any message is taken: it puts the checkpoints together.
  void keep();
  void take(const CheckpointPart& part);  ///< any thread
  /// The last checkpoint of the run folder that became whole; "": none yet.
  const std::filesystem::path& last() const { return run_->last(); }
  /// After a failure, the last call.
  void settle() noexcept;

  /// Before any state is kept: there is room for it on each host. `hosts`: of each rank, where they are on
  /// several, else empty.
  void make_room(std::vector<std::string> hosts);
  /// Under a plan in which this rank has a part: copies go from host to host, where there are several.
  void begin_copies(const Plan& plan, Transport* transport);
  /// Until all copies are there; none are made any more.
  void end_copies();
  /// What has been kept of a run that is done is of no use.
  void remove_kept();

  /// Of the plan that comes into force.
  void set_stages(size_t stages);
  /// This rank begins the checkpoints of a minibatch, which lack its stages; `manifest`: what else is in
  /// them.
  void begin(const std::vector<CheckpointKind>& kinds, const std::function<CheckpointManifest()>& manifest);
  /// As CheckpointWriter::take(), of what was begun.
  void write(const std::vector<CheckpointKind>& kinds, int64_t next_minibatch, const StatePlace& place,
             const StageState& state, bool drained);
  /// Between two actions: what has been written meanwhile is told, and completed.
  void advance();
  /// Until all that were begun are whole.
  void complete();
  /// What could be written is told: the rank leaves.
  void settle_writers() noexcept;

 private:
  int64_t attempt() const { return settings_.job.attempt ? settings_.job.attempt->number : 0; }
  int64_t kept_bytes() const;
  void remove_places_of_others() const;
  CheckpointSeries& series(CheckpointKind kind) { return kind == CheckpointKind::kRun ? *run_ : *kept_; }
  template <typename Step>
  void for_each(Step step) {
    step(*run_);
    if (kept_) step(*kept_);
  }

  const Settings settings_;
  const std::filesystem::path folder_;
  std::unique_ptr<KeptFolder> kept_folder_;       // null where no state is kept
  std::unique_ptr<CheckpointSeries> run_, kept_;  // kept_: likewise
  std::vector<std::string> hosts_;
  std::filesystem::path told_kept_;
};

}  // namespace pipewright

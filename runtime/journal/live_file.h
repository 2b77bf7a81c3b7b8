// live.json of a run folder: what each rank does, for who watches the run (pipewright-runtime watch).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "graph/live_status.h"
#include "runtime/messages/rank_message.h"

namespace pipewright {

/// Used by one thread at a time. Written once a second at most and not waited for on the disk, and not at all
/// while no rank gets on: bytes on their way to a disk count as work of a rank (runtime/control/heartbeat.h),
/// and a job that hangs must be found. What cannot be written is left out, as no run ends for who watches it.
/// The file goes with this object: it tells of a run that lives.
class LiveFile {
 public:
  static constexpr std::chrono::milliseconds kEvery{1000};

  LiveFile(std::filesystem::path folder, int64_t minibatches, int64_t minibatches_per_epoch);
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;
  ~LiveFile();

  /// `evaluating`: the run is in an evaluation.
  void take(int64_t rank, const RankStatus& told, bool evaluating);

 private:
  const std::filesystem::path file_;
  LiveStatus status_;
  std::chrono::steady_clock::time_point written_{};
  bool changed_ = false;  // since then
  bool writes_ = true;
};

}  // namespace pipewright

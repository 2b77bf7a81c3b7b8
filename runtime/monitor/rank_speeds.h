// What all ranks' monitors have said so far.
#pragma once

#include <mutex>
#include <vector>

#include "runtime/monitor/rank_monitor.h"

namespace pipewright {

/// Said on one thread, asked on another.
class RankSpeeds {
 public:
  explicit RankSpeeds(int64_t ranks) : last_(static_cast<size_t>(ranks)) {}

  void take(int64_t rank, const SpeedChange& change) {
    const std::lock_guard lock(mutex_);
    last_.at(static_cast<size_t>(rank)) = change;
  }
  double slowdown(int64_t rank) const {
    const std::lock_guard lock(mutex_);
    return last_.at(static_cast<size_t>(rank)).slowdown;
  }
  /// By rank: its last change. A rank whose speed has never changed has a slowdown of 1 and 0 seconds.
  std::vector<SpeedChange> last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<SpeedChange> last_;
};

}  // namespace pipewright

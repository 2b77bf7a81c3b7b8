// Which messages of a rank are held back on purpose: what `--disturb` says of links, for the action that the
// rank is in.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/schedule/disturbance.h"

namespace pipewright {

class MessageDelays {
 public:
  /// Borrows the disturbances.
  MessageDelays(const Disturbances& disturbances, int64_t rank) : disturbances_(disturbances), rank_(rank) {}

  /// What the calling thread sends next is the message of this minibatch.
  void begin(int64_t minibatch) {
    const std::lock_guard lock(mutex_);
    sender_ = std::this_thread::get_id();
    minibatch_ = minibatch;
  }
  /// For the first tensor of the message, those behind it follow it: a MessageDelay
  /// (runtime/transport/slowed.h). What other threads send is not held back.
  double take(int64_t peer) {
    const std::lock_guard lock(mutex_);
    if (!minibatch_ || sender_ != std::this_thread::get_id()) return 0;
    const double seconds = disturbances_.message_seconds({rank_, peer, *minibatch_});
    minibatch_.reset();
    return seconds;
  }

 private:
  const Disturbances& disturbances_;
  const int64_t rank_;
  std::mutex mutex_;
  std::thread::id sender_;
  std::optional<int64_t> minibatch_;
};

}  // namespace pipewright

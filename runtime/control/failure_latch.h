// The failure that counts, as this process knows it: taken once, read by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/control/board.h"

namespace pipewright {

class FailureLatch {
 public:
  /// `on_failure` runs once, on the thread that takes the failure; may be empty.
  explicit FailureLatch(std::function<void(const std::string& why)> on_failure);

  /// Cheap: for every action of a rank.
  bool failed() const { return failed_; }
  std::optional<Failure> failure() const;

  /// From now on the job has failed, if it had not before. Says nothing to the other ranks.
  void take(const Failure& failure);
  /// Says it to the other ranks, and takes the failure that counts, which it returns: this one, or the one
  /// that somebody announced before, for whose text `timeout` is waited.
  Failure announce(Board board, const Failure& failure, std::chrono::milliseconds timeout);
  /// Takes what another rank has announced, if anything.
  void look(Board board);

 private:
  const std::function<void(const std::string&)> on_failure_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // protected by mutex_
  std::atomic<bool> failed_ = false;
};

}  // namespace pipewright

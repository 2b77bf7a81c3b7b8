#include "runtime/control/failure_latch.h"

#include <utility>

namespace pipewright {

FailureLatch::FailureLatch(std::function<void(const std::string&)> on_failure)
    : on_failure_(std::move(on_failure)) {}

std::optional<Failure> FailureLatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FailureLatch::take(const Failure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  failed_ = true;
  if (on_failure_) on_failure_(failure.message);
}

Failure FailureLatch::announce(Board board, const Failure& failure, std::chrono::milliseconds timeout) {
  const Failure first = board.announce_failure(failure) ? failure : board.await_failure(timeout);
  take(first);
  return first;
}

void FailureLatch::look(Board board) {
  if (failed_) return;
  if (const auto announced = board.failure()) take(*announced);
}

}  // namespace pipewright

#include "runtime/journal/message_thread.h"

#include <utility>

namespace pipewright {

MessageThread::MessageThread(Take take) : take_(std::move(take)), thread_([this] { run(); }) {}

MessageThread::~MessageThread() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  end();
}

void MessageThread::put(int64_t rank, RankMessage message) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    waiting_.emplace_back(rank, std::move(message));
  }
  changed_.notify_one();
}

void MessageThread::check() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void MessageThread::finish() {
  end();
  check();
}

void MessageThread::end() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MessageThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return end_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [rank, message] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      take_(rank, message);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error) continue;
    error_ = error;
    waiting_.clear();
    return;
  }
}

}  // namespace pipewright

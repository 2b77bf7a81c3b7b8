#include "runtime/journal/line_thread.h"

#include <utility>

namespace pipewright {

LineThread::LineThread(Take take) : take_(std::move(take)), thread_([this] { run(); }) {}

LineThread::~LineThread() {
  {
    const std::lock_guard lock(mutex_);
    lines_.clear();
  }
  end();
}

void LineThread::put(int64_t rank, std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    lines_.emplace_back(rank, std::move(line));
  }
  changed_.notify_one();
}

void LineThread::check() const {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void LineThread::finish() {
  end();
  check();
}

void LineThread::end() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LineThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return end_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const auto [rank, line] = std::move(lines_.front());
    lines_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      take_(rank, line);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (!error) continue;
    error_ = error;
    lines_.clear();
    return;
  }
}

}  // namespace pipewright

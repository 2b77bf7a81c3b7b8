// A thread that takes what the ranks of a job tell, so that who hands them over never waits for a disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/messages/rank_message.h"

namespace pipewright {

/// Messages are taken in the order in which they were put. After `take` has thrown, no more are taken; put(),
/// check() and finish() throw what it threw.
class MessageThread {
 public:
  using Take = std::function<void(int64_t rank, const RankMessage& message)>;
  explicit MessageThread(Take take);
  /// Those that wait are dropped; the one that is being taken is waited for.
  ~MessageThread();
  MessageThread(const MessageThread&) = delete;
  MessageThread& operator=(const MessageThread&) = delete;

  /// From any thread; does not wait.
  void put(int64_t rank, RankMessage message);
  void check() const;
  /// The last call: returns when all have been taken.
  void finish();

 private:
  void run();
  void end();

  const Take take_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, RankMessage>> waiting_;
  std::exception_ptr error_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace pipewright

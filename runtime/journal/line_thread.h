// A thread that takes the lines of a job, so that who hands them over never waits for a disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace pipewright {

/// Lines are taken in the order in which they were put. After `take` has thrown, no more are taken; put(),
/// check() and finish() throw what it threw.
class LineThread {
 public:
  using Take = std::function<void(int64_t rank, const std::string& line)>;
  explicit LineThread(Take take);
  /// Lines that wait are dropped; the one that is being taken is waited for.
  ~LineThread();
  LineThread(const LineThread&) = delete;
  LineThread& operator=(const LineThread&) = delete;

  /// From any thread; does not wait.
  void put(int64_t rank, std::string line);
  void check() const;
  /// The last call: returns when all lines have been taken.
  void finish();

 private:
  void run();
  void end();

  const Take take_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, std::string>> lines_;
  std::exception_ptr error_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace pipewright

// The watchdog of a job of one process, which has no store and so no threads of Control.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/control/progress.h"

namespace pipewright {

/// While it lives, a thread looks ten times a second whether the main thread gets on. One that has stood in
/// an operation for `timeout` without using the CPU (a read from a server that has gone, say) cannot be
/// woken: the process ends, with one line and exit code 1. After SIGINT or SIGTERM (received_signal) the
/// bound is two seconds, if that is less, and the code that of the signal: the main thread, had it got on,
/// would have ended by itself.
class LoneWatch {
 public:
  /// `last_words` gets the line before the process ends; `told`, if given, about once a second what the
  /// process does, on the thread. Borrows `progress`.
  LoneWatch(Progress& progress, std::chrono::milliseconds timeout,
            std::function<void(const std::string& why)> last_words,
            std::function<void(const ProgressNow&)> told = nullptr);
  ~LoneWatch();

 private:
  void run();
  [[noreturn]] void end(int code, const std::string& why);

  Progress& progress_;
  const double timeout_seconds_;
  const std::function<void(const std::string&)> last_words_;
  const std::function<void(const ProgressNow&)> told_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace pipewright

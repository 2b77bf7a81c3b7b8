// What watches a rank work: progress, times, traces, detectors, disturbances are classes of this kind.
#pragma once

#include <chrono>

#include "runtime/schedule/schedule.h"

namespace pipewright {

/// All calls come from the worker's thread, for each action in the order of the observers that it is given.
/// Whatever an observer throws ends the rank.
class ActionObserver {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~ActionObserver() = default;
  /// The action is next. It may still be left out (WorkerHooks::stop_before): nothing follows then.
  virtual void before(const Action&) {}
  /// The work is done and the action is not over: may wait, as if it took so much longer.
  virtual void prolong(const Action&, Clock::time_point /*begin*/) {}
  virtual void after(const Action&, Clock::time_point /*begin*/, Clock::time_point /*end*/) {}
};

}  // namespace pipewright

// What a rank is doing, since when, and what it did before: for heartbeats, for the watchdog and for flight/.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

struct Activity {
  std::string operation;       ///< "forward of minibatch 17"; "" between operations
  std::vector<int64_t> peers;  ///< ranks without which it does not end; empty: it needs nobody
  /// The rank has done all its work and only waits for the end of the job: nobody can wait for it in vain.
  bool done = false;
  int64_t minibatch = -1;  ///< that it is of; -1: of none
};

/// In words: "receive activation of minibatch 17", "all-reduce of gradients of round 3"; the peers from the
/// plan, whose shape is `shape`.
Activity activity_of(const Action& action, const Plan& plan, const PipelineShape& shape, int64_t rank);

struct ProgressNow {
  Activity activity;
  double seconds = 0;  ///< in this activity
  /// For how long the rank has neither begun anything else nor used the CPU. 0 while it waits for
  /// peers, and between operations.
  double stalled_seconds = 0;
  int64_t begun = 0;          ///< operations so far
  int64_t minibatch = -1;     ///< the last of which an operation began; -1: none yet
  double waited_seconds = 0;  ///< in operations that need peers, the one under way too
};

/// begin() and end() come from the rank's main thread, which also makes the object; the rest from any thread.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  Progress();
  void begin(Activity activity);
  void end() { begin({}); }
  /// Called at least every few seconds: a CPU's use is noticed by comparing two calls.
  ProgressNow now();

  struct Event {
    double begun_seconds = 0;  ///< since the object was made
    double lasted_seconds = 0;
    std::string operation;
  };
  /// The last 200 that have ended, oldest first.
  std::vector<Event> events() const;

 private:
  double cpu_seconds() const;

  mutable std::mutex mutex_;
  const Clock::time_point made_ = Clock::now();
  clockid_t thread_clock_ = CLOCK_THREAD_CPUTIME_ID;
  Activity activity_;
  Clock::time_point since_ = made_;
  int64_t begun_ = 0;
  int64_t minibatch_ = -1;
  double waited_seconds_ = 0;
  std::deque<Event> events_;
  Clock::time_point looked_ = made_;  // by now()
  Clock::time_point alive_ = made_;   // when it last used the CPU
  double cpu_at_look_seconds_ = 0;
};

}  // namespace pipewright

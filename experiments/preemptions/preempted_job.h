// A job whose ranks are preempted, in virtual time: what it trains in a trace of slots that go and come back,
// with the launcher's own state machine (runtime/coordinator/attempts.h) and prices for what it says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/coordinator/attempts.h"

namespace pipewright {

/// Slots that go, or come, at one time.
struct SlotChange {
  double seconds = 0;
  std::vector<Slot> gone, come;
};
/// From 0 on, in order of time; what comes at 0 is there at the start.
using PreemptionTrace = std::vector<SlotChange>;

struct DrawnTrace {
  int64_t slots = 8;
  double seconds = 24 * 3600;
  double every_seconds = 1200;   ///< in the mean, exponential, from one preemption to the next
  double another = 0.25;         ///< chance that it takes one slot more, and one more, ...
  double absent_seconds = 2040;  ///< in the mean, exponential, until a slot is there again
  uint64_t seed = 1;
};
PreemptionTrace draw(const DrawnTrace& rules);

/// A trace of instances as Bamboo and Oobleck publish them, lines of "milliseconds,add|remove,name": every
/// `thinned`-th instance in order of their coming, each in the first of `slots` slots that is free.
/// InputError.
PreemptionTrace read_trace(const std::string& file, int64_t slots, int64_t thinned);

struct PricedJob {
  AttemptRules rules;
  std::vector<double> minibatch_seconds;  ///< with 1, 2, ... ranks, `rules.ranks` or more
  double recover_seconds = 2.5;     ///< from a loss until training goes on, half of it until all have ended
  int64_t copy_every = 0;           ///< minibatches; 0: no rank keeps a copy of its neighbour's state
  double copy_share = 0;            ///< of the time, for copies
  double checkpoint_seconds = 600;  ///< from one on a disk that stays to the next; written beside training
  bool drains = true;               ///< a checkpoint before ranks that have come are used
};

struct JobFigures {
  double minibatches = 0;   ///< trained at the end of the trace, each counted once
  double ideal = 0;         ///< had the ranks that were there trained all the time, without copies
  double again = 0;         ///< minibatches done again
  double down_seconds = 0;  ///< with a rank there, and none training
  int64_t attempts = 0;
  int64_t copies_lost = 0;  ///< losses that took a rank and the neighbour with its copy
  int64_t ends = 0;         ///< of the job; it is started again as soon as it can be, from the disk
};
JobFigures play(const PreemptionTrace& trace, const PricedJob& job, double seconds);

}  // namespace pipewright

// What the time of each rank of a real run went into, by its trace.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Seconds of one rank; all together they are the timeline's.
struct TimeUse {
  int64_t rank = 0;               ///< its number
  double compute_seconds = 0;     ///< forward, backward and update
  double reduce_seconds = 0;      ///< all-reduce, other replicas waited for
  double dependency_seconds = 0;  ///< the message was not yet made: a neighbour still computed
  double transfer_seconds = 0;    ///< it was made and not yet here, and handing messages over
  double samples_seconds = 0;     ///< waiting for samples
  double fill_drain_seconds = 0;  ///< before the rank's first forward and after its last action
  double other_seconds = 0;       ///< between actions: evaluations, checkpoints, the runtime itself

  double idle_seconds() const {
    return reduce_seconds + dependency_seconds + transfer_seconds + samples_seconds + fill_drain_seconds +
           other_seconds;
  }
};

/// By rank, in the order of the timeline's. `timeline` is one of timeline_of_trace(): each rank's actions are
/// one after the other. Where a rank waits for a message, the time until the last forward or backward that
/// makes it has ended is a dependency (all of it, where the trace has not got that one), the rest transfer.
std::vector<TimeUse> time_use(const Simulation& timeline);

}  // namespace pipewright

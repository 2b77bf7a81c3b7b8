// From which state the ranks of a further attempt go on, before they are anything else: where they are on
// several hosts they agree on it, and each host gets the files that it lacks from others.
#pragma once

#include "graph/run.h"
#include "runtime/job/attempt.h"
#include "runtime/launch/place.h"

namespace pipewright {

/// On one host newest_state(). On several the newest kept state that can be put together from what they have
/// (newest_whole()), unless a checkpoint in the run folder is newer: every rank calls it, and comes to the
/// same; a state is then whole on every host, as it would be on one. What was kept and is not taken stays
/// until make_kept_state(). PeerError when ranks do not come, or a host is lost meanwhile, within the run's
/// start time-out; RunError if a file cannot be written.
RecoveredState recovered_state(const Run& run, const Place& place);

}  // namespace pipewright

// How fast a run was on the whole, beside its steady state (Summary::samples_per_second).
#pragma once

#include "graph/summary.h"

namespace pipewright {

/// Samples that were trained over the wall time that the run took for them, with filling and draining,
/// evaluations and checkpoints; 0: not known.
double samples_over_wall_time(const Summary& summary);

}  // namespace pipewright

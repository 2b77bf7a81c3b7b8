// What a plan takes with other links than those asked about.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

/// The topology with all links so many times as fast; nothing where they are faster than any.
std::optional<Topology> with_faster_links(Topology topology, double factor);

/// Of the same plan, not planned anew, with all links a sixteenth to sixteen times as fast, in powers of two:
/// bandwidth of the outermost ones in bytes per second, and the seconds of a minibatch; NaN: it cannot be run
/// so. Equal topologies give equal bandwidths.
std::vector<std::pair<double, double>> seconds_by_bandwidth(const Plan& plan, const Profile& profile,
                                                            const Topology& topology,
                                                            const PlanRequest& request);

}  // namespace pipewright

// In which order the devices stand in a row, for quick_plans().
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/topology.h"

namespace pipewright {

using RankOrder = std::vector<int64_t>;

/// Ranks as the plan's stages come upon them, then those without a stage.
RankOrder order_of_stages(const Plan& plan, int64_t ranks);

/// Orders worth trying, likeliest first, all different: that of the plan in force and the topology's, both
/// also from the other end. Where links differ a device cannot take another's place, where devices are alike
/// any can: then the topology's alone.
std::vector<RankOrder> orders_of_ranks(const Topology& topology, const Plan& in_force);

}  // namespace pipewright

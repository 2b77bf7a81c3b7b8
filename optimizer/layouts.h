// Which devices run which stage: ways to stand on levels of links that are worth trying.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/topology.h"

namespace pipewright {

using Ranks = std::vector<std::vector<int64_t>>;  ///< by stage; replica q runs on [q]

/// For stages of so many replicas on devices 0, 1, ... of the levels: in a row from the first stage and from
/// the last; packed, so that what fits into one group does not stand in two; and, where each stage has
/// equally many replicas in each group, so that minibatches stay in their group. All different; none leaves a
/// device idle before its last. Replicas of a stage come in the order of their devices, in some also round
/// robin over the groups.
std::vector<Ranks> layouts(const std::vector<int64_t>& replicas, const std::vector<TopologyLevel>& levels);

}  // namespace pipewright

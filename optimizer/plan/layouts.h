// Which devices run which stage: ways to stand on levels of links that are worth trying.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/topology.h"

namespace pipewright {

using Ranks = std::vector<std::vector<int64_t>>;  ///< by stage; replica q runs on [q]

/// For stages of so many replicas on devices 0, 1, ... of the levels: in a row from the first stage and from
/// the last; packed, so that what fits into one group does not stand in two; and, where each stage, or each
/// of a run of stages, has equally many replicas in each of several groups, so that minibatches stay in their
/// group. All different, also as in_order_met() has them; none leaves a device idle before its last. Replicas
/// of a stage come in the order of their devices, in some also round robin over the groups.
std::vector<Ranks> layouts(const std::vector<int64_t>& replicas, const std::vector<TopologyLevel>& levels);

/// Other numbers of replicas on devices 0, 1, ... in the order of a layout; those that it left idle come
/// last.
Ranks dealt_out(const Ranks& ranks, const std::vector<int64_t>& replicas);

/// The same but for the order of equal groups and of devices within them: numbers go up as the stages come
/// upon them. Layouts for which this is equal run alike.
Ranks in_order_met(const Ranks& ranks, const std::vector<TopologyLevel>& levels);

}  // namespace pipewright

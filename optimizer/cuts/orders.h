// Orders in which the groups of a DAG can run.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cuts/contraction.h"

namespace pipewright {

/// Depth first: a group that has just become ready comes next, so that branches are finished one after the
/// other. Seed 0 takes the branches as they are numbered, others in a random order, and now and then leave a
/// branch. The same seed gives the same order.
std::vector<int> order_of_groups(const Contraction& graph, uint32_t seed);

/// The sets of nodes along an order, the empty one first.
std::vector<NodeSet> cuts_along(const Contraction& graph, const std::vector<int>& order);

}  // namespace pipewright

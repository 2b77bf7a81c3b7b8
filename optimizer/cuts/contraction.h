// A graph of nodes with what has to stay together made one: a DAG of groups.
#pragma once

#include <utility>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/dataflow.h"

namespace pipewright {

using NodePair = std::pair<int, int>;

struct Contraction {
  std::vector<int> group_of;               ///< by node
  std::vector<std::vector<int>> members;   ///< by group: nodes, ascending
  std::vector<std::vector<int>> previous;  ///< by group: groups that come before it, ascending, none twice
  std::vector<std::vector<int>> next;      ///< the mirror image

  /// Groups are numbered in an order in which they can run.
  int size() const { return static_cast<int>(members.size()); }
};

/// Groups are the strongly connected parts of `edges` (from, to) and `together`, which hold in both
/// directions: what lies on a way between two nodes of a group is in the group. Deterministic; where `edges`
/// go from smaller to larger numbers only, groups stand in the order of their first nodes as far as they can.
Contraction contract(int nodes, const std::vector<NodePair>& edges, const std::vector<NodePair>& together);

/// Together stay tied parameters, nodes that the model has join their only reader, and nodes of no weight
/// that it keeps with the one node they read. Every cut that the search would look at is a set of groups.
Contraction contract(const Dataflow& flow, bool memory_limited);

/// The nodes of the groups.
NodeSet nodes_of(const Contraction& graph, const NodeSet& groups);

}  // namespace pipewright

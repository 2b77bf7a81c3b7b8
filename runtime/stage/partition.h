// What a plan means for a graph: which values each stage reads, receives and sends. No tensors.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/plan.h"

namespace pipewright {

/// Names are in the order in which the graph makes them.
struct StageInterface {
  /// Positions in graph.nodes, ascending: the plan's, and those of graph.everywhere whose values they need.
  std::vector<size_t> nodes;
  std::vector<std::string> fields;  ///< inputs of the graph that its nodes read: loaded by the stage itself
  std::vector<std::string>
      received;                   ///< values that cross the cut before it; equals `sent` of the stage before
  std::vector<std::string> sent;  ///< values that cross the cut behind it; for the last stage: none
};

/// Every value made by a node at or before a cut and read behind it crosses that cut, so what skips a stage
/// is carried through it; but those that graph.everywhere makes, each stage makes itself. Outputs of the
/// graph count as read by the last stage. The plan must fit (check_plan_for_graph).
std::vector<StageInterface> partition(const Graph& graph, const Plan& plan);

/// Values that depend on a trainable parameter through floating values: a gradient flows back to them.
std::set<std::string> differentiable_values(const Graph& graph);

}  // namespace pipewright

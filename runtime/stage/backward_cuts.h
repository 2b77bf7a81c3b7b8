// Where the backward of a stage is cut in two: gradients of its inputs first, those of its weights later.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// The autograd graph is cut behind each node that alone reads a trainable parameter. The gradient of what
/// the node makes is then all that its parameters' gradients need, and autograd skips them on the way to the
/// inputs. (Zero Bubble, ICLR 2024; torch/distributed/pipelining/_backward.py finds the same places at run
/// time.) A parameter that several nodes read is not cut off: from the node behind, its gradient would flow
/// on through the node before, and be counted twice. Nor is a node cut off whose result is written in place
/// later, unless each operator up to the last that writes it writes it: autograd gives what is written, and
/// the views of it, new places in its graph, and a view made or a value read before leads past them.
struct BackwardCuts {
  struct Cut {
    std::vector<size_t> values;        ///< that the node makes, as positions in BackwardCuts::values
    std::vector<std::string> weights;  ///< trainable parameters that only this node reads
  };
  std::vector<std::string> values;
  std::vector<Cut> cuts;  ///< in the order of the graph
};

/// For a stage of these nodes (positions in the graph, ascending).
BackwardCuts backward_cuts(const Graph& graph, const std::vector<size_t>& nodes);

}  // namespace pipewright

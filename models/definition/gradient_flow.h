// Where gradients flow, by what operators' derivatives are defined for. No tensors.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// What the node reads that a gradient of its results flows back to, if it is floating-point: nothing of a
/// node without autograd or of an operator that autograd does not pass (detach, zeros_like), and no argument
/// of which only the shape or the dtype counts, or that has no derivative.
std::vector<std::string> differentiable_reads(const Node& node);

/// The graph with the parameters that no gradient of its loss reaches as not trainable: PyTorch's optimizers
/// leave them alone, as they have no gradient (a teacher under no_grad). If none of them is reached it is as
/// it was.
Graph with_reached_parameters(Graph graph);

}  // namespace pipewright

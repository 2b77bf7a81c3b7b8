// Floating-point operations of a model, counted from its graph.
#pragma once

#include "graph/graph.h"

namespace pipewright {

struct ModelFlops {
  double forward = 0;   ///< of one minibatch
  double training = 0;  ///< forward and backward
};

/// Counts what dominates: matrix products, convolutions, attention, recurrent layers; a multiplication and an
/// addition are two. Nothing else counts, nor what is computed twice (recomputing). The backward of a node
/// counts its forward once for each operand that takes a gradient; of attention and recurrent layers twice,
/// if one of them does.
ModelFlops count_flops(const Graph& graph);

}  // namespace pipewright

// Looks at the calls of a program from elsewhere before anything of it runs.
#pragma once

#include "graph/graph.h"

namespace pipewright {

/// InputError, naming the node: an operator that graphs may not call or that this LibTorch has not, arguments
/// that do not fit its schema, and a view of given strides that reaches beyond what its tensor's memory holds
/// by the types in the graph.
void check_calls(const Graph& graph);

}  // namespace pipewright

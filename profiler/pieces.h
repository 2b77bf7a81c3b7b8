// Where a graph must not be cut to be measured in parts.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// First nodes of the pieces, ascending, [0] is 0: a part begins with one of them. Within a piece lie
///
///  * all nodes that touch memory which a node writes, up to the last write: a copy that was made before it
///    would be another memory, and autograd would not know of the write;
///  * nodes that depend on nothing and read others that do not either: they run once, which a part could not
///    know of what comes in.
///
/// InputError that names the node for an operator that this LibTorch has not.
std::vector<size_t> piece_begins(const Graph& graph);

}  // namespace pipewright

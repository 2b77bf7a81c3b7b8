// A graph as people read it.
#pragma once

#include <string>

#include "graph/graph.h"
#include "graph/text_table.h"

namespace pipewright {

/// Nodes grouped by layer, with operator, shapes made and parameter counts; the model's inputs, outputs and
/// total first. The nodes in lines of `width` characters.
std::string graph_listing(const Graph& graph, int64_t width = kAnyWidth);
/// For Graphviz: nodes in boxes of their layers, edges with the shape that flows.
std::string graph_dot(const Graph& graph);

/// "138 357 544"
std::string with_thousands(int64_t number);
/// "float32 (16, 3, 224, 224)"; the dtype only where it is not float32.
std::string type_text(const TensorType& type);

}  // namespace pipewright

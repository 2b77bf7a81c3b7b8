// Graph passes: what a graph from elsewhere is rid of before it trains. None of them changes a number.
// docs/bring-your-own-model.md tells users about them, and models/exported/exported_model.h how to switch them off.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// Without the nodes that nothing depends on: no output of the graph, no buffer and no memory that another
/// node reads. Then without the inputs, parameters and buffers that no node reads any more, so a parameter
/// of an unused head is not trained (weight decay would move it), as PyTorch leaves it alone for want of a
/// gradient.
Graph without_dead_nodes(Graph graph);

/// Fills graph.everywhere with what is cheaper to compute again in each stage than to send: masks, positions,
/// rotary tables. Those are values that two nodes or more read and that depend on no parameter and no random
/// number, only on integer or bool inputs of the graph and on buffers that no node writes; with what they are
/// made from. Together they make at most a sixteenth of the bytes of all values, so that what is computed
/// several times stays far below what is computed once; of more, the first in the order of the graph.
/// After with_storage_groups().
Graph with_nodes_everywhere(Graph graph);

/// For each of `nodes` (positions, ascending): does it depend on nothing but others of them that do not
/// either? Then it makes the same numbers whenever it runs. Nodes of graph.together are none, as somebody may
/// write what they make.
std::vector<bool> constant_nodes(const Graph& graph, const std::vector<size_t>& nodes);

}  // namespace pipewright

// Which nodes share memory, by what operators' schemas say, and so cannot be parted.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// Fills graph.together. Values share memory if an operator's schema says that its result is a view of an
/// argument (or may be), or that it writes the argument and returns it. A message between stages is a copy:
/// what is written behind the cut would not be seen before it. So for every piece of memory that some node
/// writes, the nodes that touch it, from its maker to the last that writes it, are one set; who only reads it
/// afterwards may be elsewhere. A buffer lives on to the next minibatch: all its nodes are one set. What
/// changes a buffer and reads nothing else goes with the node behind it.
///
/// An input of the graph that is written is first copied by a new node `clone_INPUT`, so that the data stays
/// what it was. Of a buffer that is written, nodes with gradients read copies: forwards of later minibatches
/// write it before an earlier one's backward. InputError that names the node: an operator that this LibTorch
/// has not (a custom one, say), a parameter that is written.
Graph with_storage_groups(Graph graph);

/// For tests: a class for each value, parameter and buffer; those of one class may share memory.
std::vector<std::vector<std::string>> storage_classes(const Graph& graph);

}  // namespace pipewright

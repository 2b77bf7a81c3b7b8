// A model whose first layers are trained no more: another graph, with the same nodes.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "graph/graph.h"

namespace pipewright {

/// `training` with its first `layers` layers frozen (graph/model_layers.h; 0: as it is). Parameters that
/// these read are not trainable any more, whoever else reads them; their nodes run as in evaluation
/// (evaluation_graph) and without autograd, so what leaves them is a function of the sample alone, and their
/// buffers stay as they are. Names, order and types are unchanged: a plan for `training` cuts this graph too.
/// InputError if there are not so many layers.
Graph frozen_graph(const Graph& training, int64_t layers);

}  // namespace pipewright

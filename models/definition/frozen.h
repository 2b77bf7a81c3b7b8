// A model whose first layers are trained no more: another graph, with the same nodes.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "graph/graph.h"
#include "graph/plan.h"
#include "models/definition/model.h"

namespace pipewright {

/// `training` with its first `layers` layers frozen (graph/model_layers.h; 0: as it is). Parameters that
/// these read are not trainable any more, whoever else reads them; their nodes run as in evaluation
/// (evaluation_graph) and without autograd, so what leaves them is a function of the sample alone; their
/// buffers stay as they are where they run as `keeping_buffers` (models/run/interpreter.h). Names, order and
/// types are unchanged: a plan for `training` cuts this graph too. InputError if there are not so many
/// layers.
Graph frozen_graph(const Graph& training, int64_t layers);
/// The model with frozen_graph().
Model frozen_model(Model model, int64_t layers);

/// The nodes of those layers: the first so many of the graph's.
size_t frozen_nodes(const Graph& graph, int64_t layers);

/// The buffers that only those layers read: they stay as they are, to the bit.
std::set<std::string> frozen_buffers(const Graph& graph, int64_t layers);

/// `plan`, which fits `training`, as one that takes the first `layers` layers as frozen: its stages before
/// the first parameter that is trained are frozen stages; of a schedule with several stages a rank none is.
Plan frozen_plan(Plan plan, const Graph& training, int64_t layers);

}  // namespace pipewright

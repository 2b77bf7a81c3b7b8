// What a norm over a minibatch needs of it.
#pragma once

#include "graph/graph.h"

namespace pipewright {

/// InputError, naming the layer, for a norm of `training` that has one value to take a variance of: its
/// statistics would be no numbers. What only runs forward has no such norm: evaluation_graph() has switched
/// them to running statistics.
void check_variances(const Graph& training);

}  // namespace pipewright

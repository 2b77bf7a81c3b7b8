// A minibatch that looks like data, for profiling without any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

/// One tensor per graph.inputs: normal for floating types, uniform in range for integers (labels below the
/// number of scores, tokens below the number of rows of the embedding that reads them).
std::vector<at::Tensor> synthetic_inputs(const Graph& graph, uint64_t seed);

}  // namespace pipewright

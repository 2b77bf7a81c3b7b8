// A minibatch of a real data set, for profiling, and what it takes to make one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace pipewright {

struct DataInputs {
  std::vector<at::Tensor> tensors;  ///< one per graph.inputs
  double seconds = 0;               ///< to make one minibatch, in one thread, median of a few
  int64_t bytes = 0;                ///< of what is timed
};

/// `for_device`: what is timed is what workers make for a device other than the CPU, samples as they are
/// stored; the tensors are the same. InputError: as open_dataset() and check_dataset_for_graph(); or fewer
/// samples than one minibatch.
DataInputs data_inputs(const std::string& data_spec, const Graph& graph, int64_t batch_size, uint64_t seed,
                       bool for_device);

}  // namespace pipewright

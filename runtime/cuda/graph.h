// Recordings of CUDA: graphs, captured from a stream.
#pragma once

#include <memory>

#include "models/device/device_graph.h"

namespace pipewright {

/// Of device `device`. Each replay is one launch, and two small ones for each generator and for the default
/// one.
std::unique_ptr<DeviceGraphs> make_cuda_graphs(int64_t device);

}  // namespace pipewright

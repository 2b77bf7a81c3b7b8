// What a stage and its worker need to know of a training run.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "graph/run.h"
#include "models/device/device_graph.h"

namespace pipewright {

struct TrainingRules : UpdateSettings {
  uint64_t random_seed() const { return static_cast<uint64_t>(seed); }

  int64_t minibatches_per_epoch = 1;
  int64_t total_minibatches = 1;
  at::Device device = at::kCPU;    ///< where the rank computes
  MakeDeviceGraphs make_graphs{};  ///< of `device`, for cuda_graphs; empty: it has none
};

}  // namespace pipewright

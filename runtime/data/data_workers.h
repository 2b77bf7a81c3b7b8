// Threads that make minibatches: how many, and where they run.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/data_workers.h"

namespace pipewright {

struct DataWorkers {
  int64_t count = 1;
  std::vector<int> cores =
      {};  ///< by number, that they may run on; none: those of the thread that starts them
};

/// `wanted`; if that is 0, default_data_workers() of the cores that this process may use, shared equally by
/// `processes`, which compute with `computing` threads each.
DataWorkers data_workers(int64_t wanted, int64_t computing, int64_t processes = 1);

/// How many minibatches of `batch_size` samples to make in advance: 4, or, where minibatches are small, two
/// more than have two samples for each worker.
int64_t minibatches_ahead(int64_t workers, int64_t batch_size);

}  // namespace pipewright

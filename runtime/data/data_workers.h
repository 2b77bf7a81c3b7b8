// Threads that make minibatches: how many, and where they run.
#pragma once

#include <cstdint>
#include <vector>

namespace pipewright {

struct DataWorkers {
  int64_t count = 1;
  std::vector<int> cores =
      {};  ///< by number, that they may run on; none: those of the thread that starts them
};

/// What a rank takes at most by itself: more cores than this make images faster than a device takes them.
inline constexpr int64_t kMostDataWorkers = 16;

/// `wanted`; if that is 0, one for each core that is left, at least 1 and at most kMostDataWorkers: those
/// that this process may use, shared equally by `processes`, less the `computing` threads of each.
DataWorkers data_workers(int64_t wanted, int64_t computing, int64_t processes = 1);

/// How many minibatches of `batch_size` samples to make in advance: 4, or, where minibatches are small, two
/// more than have two samples for each worker.
int64_t minibatches_ahead(int64_t workers, int64_t batch_size);

}  // namespace pipewright

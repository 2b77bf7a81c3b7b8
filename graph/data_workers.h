// How many threads of a rank make minibatches: what a run starts and what a price expects.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pipewright {

/// What a rank takes at most by itself: more cores than this make images faster than a device takes them.
inline constexpr int64_t kMostDataWorkers = 16;

/// One for each core that is left, at least 1 and at most kMostDataWorkers: of `cores` that `ranks` of a host
/// share equally, less the `computing` threads of each.
inline int64_t default_data_workers(int64_t cores, int64_t ranks, int64_t computing) {
  return std::clamp<int64_t>(cores / ranks - computing, 1, kMostDataWorkers);
}

}  // namespace pipewright

// How many threads of a rank make minibatches, and how many of those are ahead on its device: what a run does
// and what a price expects.
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

/// Minibatches that are on their way to a device, or there, before the one that is asked for has ended.
inline constexpr int64_t kUploadsAhead = 2;

}  // namespace pipewright

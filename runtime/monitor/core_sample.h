// What a rank tells rank 0 of the core and the GPU that it computes on, some times a second, where a policy
// reads it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace pipewright {

struct CoreSample {
  /// In the order of core_features() (interference/core_features.h), NaN: not known. Empty: the rank is bound
  /// to no core and computes on no GPU, and says so once.
  std::vector<double> features;
};

/// What all ranks have told, said on one thread, asked on another.
class CoreSamples {
 public:
  explicit CoreSamples(int64_t ranks) : since_(static_cast<size_t>(ranks)) {}

  void take(int64_t rank, CoreSample sample);
  /// By rank: what has come since it was last asked, the oldest first; of a rank that was not asked about for
  /// long only the last kMost.
  std::vector<std::vector<CoreSample>> take_all();
  static constexpr size_t kMost = 16;

 private:
  std::mutex mutex_;
  std::vector<std::vector<CoreSample>> since_;
};

}  // namespace pipewright

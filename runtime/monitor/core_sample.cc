#include "runtime/monitor/core_sample.h"

#include <utility>

namespace pipewright {

void CoreSamples::take(int64_t rank, CoreSample sample) {
  const std::lock_guard lock(mutex_);
  std::vector<CoreSample>& since = since_.at(static_cast<size_t>(rank));
  since.push_back(std::move(sample));
  if (since.size() > kMost) since.erase(since.begin());
}

std::vector<std::vector<CoreSample>> CoreSamples::take_all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::vector<CoreSample>> all(since_.size());
  std::swap(all, since_);
  return all;
}

}  // namespace pipewright

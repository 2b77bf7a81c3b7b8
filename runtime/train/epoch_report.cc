#include "runtime/train/epoch_report.h"

#include <algorithm>
#include <utility>

namespace pipewright {

int64_t update_samples_of(const PipelineShape& shape, int64_t batch_size) {
  int64_t minibatches = 0;
  for (int64_t s = shape.frozen_stages; s < shape.stages(); ++s)
    minibatches = std::max(minibatches, StageTurns(shape, s).round_length());
  return minibatches * batch_size;
}

EpochSummary EpochReport::take(const TellEpoch& what, const EpochEnd& end) {
  EpochSummary epoch;
  epoch.epoch = what.epoch;
  epoch.minibatches = what.minibatches;
  epoch.plan = end.plan_file;
  epoch.frozen_layers = end.plan.frozen_layers;
  epoch.ranks = end.plan.world_size;
  epoch.update_samples = end.update_samples;
  epoch.times = std::exchange(times_, {});
  epoch.seconds = end.trained_seconds - trained_before_seconds_ + epoch.times.change_seconds;
  trained_before_seconds_ = end.trained_seconds;
  if (!end.cache) return epoch;
  epoch.fetched = end.cache->fetched - cache_before_.fetched;
  epoch.deepened = end.cache->deepened - cache_before_.deepened;
  epoch.computed = end.cache->computed - cache_before_.computed;
  epoch.times.cache_seconds = end.cache->fetch_seconds - cache_before_.fetch_seconds;
  epoch.cache_bytes = end.cache->memory_bytes + end.cache->disk_bytes;
  cache_before_ = *end.cache;
  return epoch;
}

}  // namespace pipewright

#include "runtime/schedule/split_messages.h"

#include <numeric>

#include "graph/sample_ranges.h"

namespace pipewright {

ReplicaRange parts_met(const PipelineShape& shape, int64_t stage, int64_t replica, int64_t other) {
  if (!shape.splits(other)) return {0, 1};
  if (!shape.splits(stage)) return {0, parts_of(shape, other)};
  const auto& own = shape.split[static_cast<size_t>(stage)];
  const auto& theirs = shape.split[static_cast<size_t>(other)];
  // So many samples that no range is rounded.
  const int64_t samples = std::accumulate(own.begin(), own.end(), int64_t{0}) *
                          std::accumulate(theirs.begin(), theirs.end(), int64_t{0});
  const SampleRange range = sample_ranges(samples, own).at(static_cast<size_t>(replica));
  ReplicaRange met{0, 0};
  int64_t part = 0;
  for (const SampleRange& each : sample_ranges(samples, theirs)) {
    if (overlap(range, each).size() > 0) {
      if (met.count == 0) met.first = part;
      ++met.count;
    }
    ++part;
  }
  return met;
}

PipelineShape evaluation_shape(PipelineShape shape) {
  if (!shape.any_splits()) return shape;
  shape.shares.resize(shape.replicas.size());
  for (size_t s = 0; s < shape.split.size(); ++s)
    if (shape.splits(static_cast<int64_t>(s))) shape.shares[s] = shape.split[s];
  shape.split.clear();
  // Nothing is updated, so turns need not be equal.
  if (facts_of(shape.weights).needs_equal_turns()) shape.weights = WeightRule::kStash;
  return shape;
}

}  // namespace pipewright

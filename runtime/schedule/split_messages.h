// Who sends what to whom where the replicas of a stage share each minibatch (`split`): the only home of it,
// in terms of replicas. In samples it is graph/sample_ranges.h, which joins no others than these: rounding
// keeps the order of what begins and ends.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// Replicas [first, first + count) of a stage.
struct ReplicaRange {
  int64_t first = 0;
  int64_t count = 1;
};

/// Parts in which a stage sends each message, one by each replica that has a part of the minibatch: its
/// replicas if it splits, else 1.
inline int64_t parts_of(const PipelineShape& shape, int64_t stage) {
  return shape.splits(stage) ? shape.replicas[static_cast<size_t>(stage)] : 1;
}

/// The parts of a neighbouring stage `other` that have a sample of what replica `replica` of `stage` has: all
/// of them where `stage` does not split; {0, 1} where `other` does not.
ReplicaRange parts_met(const PipelineShape& shape, int64_t stage, int64_t replica, int64_t other);

/// The shape for evaluation, in which all replicas take whole minibatches: those of a stage that splits in
/// turns, its weights their shares.
PipelineShape evaluation_shape(PipelineShape shape);

}  // namespace pipewright

// AD-PSGD in lock-step: for every update pipelines are paired anew. Nobody decides it on the way: all draw
// the same.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/schedule/shape.h"

namespace pipewright {

/// Pipelines that take minibatches in turn.
struct LockstepPairs {
  uint64_t seed = 0;
  int64_t pipelines = 1;
  int64_t interval = 1;  ///< minibatches of a pipeline's update

  /// The pipelines in an order drawn for this round: neighbours 0 and 1, 2 and 3, ... are the pairs; with an
  /// odd number the last one is alone. A round is an update, counted as each pipeline counts its own
  /// (StageTurns::round_of).
  std::vector<int64_t> drawn(int64_t round) const;
  /// Those whose weights the pipeline averages after its update of this round of the span, ascending: itself
  /// and its partner, or itself alone where it has none, or one that makes no such update in the span.
  std::vector<int64_t> group_of(int64_t pipeline, int64_t round, Span span) const;
};

}  // namespace pipewright

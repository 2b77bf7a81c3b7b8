// Forward only, for evaluation and prediction: nothing comes back, so nothing limits how far a stage runs
// ahead. Two stages, the second on two replicas and taking twice as long:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. ..
//   rank 1  stage 1 replica 0 | .. F0 F0 F2 F2 ..
//   rank 2  stage 1 replica 1 | .. .. F1 F1 F3 F3
//
// A rank with several stages takes the minibatches in blocks and lets a block through its first stage, then
// through its next one, and so on; a block is as long as all ranks need to have something to do.
#include <algorithm>

#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<Action> forward_only(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const StageTurns turns(shape, stage);
  std::vector<Action> actions;
  if (shape.stages_per_rank == 1) {
    for (const int64_t k : turns.minibatches_of(replica, span)) actions.push_back({ActionKind::kForward, k});
    return actions;
  }
  int64_t length = 0;
  for (int64_t group = 0; group < shape.groups(); ++group) length += StageTurns(shape, group).longest_turn();
  for (int64_t begin = span.first / length * length; begin < span.end(); begin += length) {
    const int64_t first = std::max(begin, span.first), end = std::min(begin + length, span.end());
    const std::vector<int64_t> block = turns.minibatches_of(replica, {first, end - first});
    for (int64_t at = stage; at < shape.stages(); at = shape.next_of_group(at))
      for (const int64_t k : block) actions.push_back({ActionKind::kForward, k, at});
  }
  return actions;
}

}  // namespace pipewright

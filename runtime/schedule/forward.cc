// Forward only, for evaluation and prediction: nothing comes back, so nothing limits how far a stage runs
// ahead. Two stages, the second on two replicas and taking twice as long:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. ..
//   rank 1  stage 1 replica 0 | .. F0 F0 F2 F2 ..
//   rank 2  stage 1 replica 1 | .. .. F1 F1 F3 F3
#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<Action> forward_only(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const int64_t replicas = shape.replicas[stage];
  const Rounds rounds = rounds_of(replicas, span);
  std::vector<Action> actions;
  actions.reserve(rounds.count);
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    const int64_t minibatch = round * replicas + replica;
    if (minibatch >= span.first && minibatch < span.end())
      actions.push_back({ActionKind::kForward, minibatch});
  }
  return actions;
}

}  // namespace pipewright

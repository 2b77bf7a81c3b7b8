// 1F1B, asynchronous, round robin over replicas (PipeDream, SOSP 2019, section 3.2): a rank runs `depth`
// forwards, then one backward and one forward in turn. Straight, three stages, depths 3-2-1, every action one
// unit of time:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
//   rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
//   rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
#include <algorithm>

#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<Action> alternate(int64_t replicas, int64_t replica, int64_t depth, Span span) {
  const Rounds rounds = rounds_of(replicas, span);
  const int64_t warm_up = std::min(depth - 1, rounds.count);
  std::vector<Action> actions;
  actions.reserve(3 * rounds.count);
  // In a short round some replicas have no minibatch. They leave out its forward and backward but keep its
  // place in the order, so that its update falls between the same rounds on every replica: weight versions
  // stay equal and no replica waits for a later round than the others do.
  const auto add = [&](ActionKind kind, int64_t round) {
    const int64_t minibatch = round * replicas + replica;
    if (minibatch >= span.first && minibatch < span.end()) actions.push_back({kind, minibatch});
  };
  for (int64_t round = rounds.first; round < rounds.first + warm_up; ++round)
    add(ActionKind::kForward, round);
  for (int64_t round = rounds.first; round < rounds.end(); ++round) {
    if (round + warm_up < rounds.end()) add(ActionKind::kForward, round + warm_up);
    add(ActionKind::kBackward, round);
    actions.push_back({ActionKind::kUpdate, round});
  }
  return actions;
}

std::vector<Action> one_f_one_b(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  return alternate(shape.replicas[stage], replica, usable_in_flight(shape)[stage], span);
}

}  // namespace pipewright

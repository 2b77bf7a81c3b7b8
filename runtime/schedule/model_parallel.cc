// Plain model parallelism: nothing overlaps but the replicas of a round. Two stages, every action one unit of
// time:
//
//   rank 0  stage 0 replica 0 | F0 .. .. B0 F1 .. .. B1
//   rank 1  stage 1 replica 0 | .. F0 B0 .. .. F1 B1 ..
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<Action> model_parallel(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  // One round in flight at each stage; the first stage does not admit a minibatch before its last one has
  // come back.
  return asynchronous_order(StageTurns(shape, stage), replica, 0, span);
}

}  // namespace pipewright

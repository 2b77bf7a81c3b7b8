// 1F1B, asynchronous, round robin over replicas (PipeDream, SOSP 2019, section 3.2): a rank runs `depth`
// forwards, then one backward and one forward in turn. Straight, three stages, depths 3-2-1, every action one
// unit of time:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
//   rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
//   rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<Action> one_f_one_b(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const StageTurns turns(shape, stage);
  return asynchronous_order(turns, replica, turns.run_ahead(usable_in_flight(shape)[stage]), span);
}

}  // namespace pipewright

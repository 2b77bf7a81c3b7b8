// 1F1B with a flush after each update interval (DAPPLE, PPoPP 2021; PipeDream-Flush in "Memory-Efficient
// Pipeline-Parallel DNN Training", ICML 2021): as long as GPipe, with fewer minibatches in flight. Three
// stages, depths 3-2-1, four microbatches, every action one unit of time:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
//   rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
//   rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
#include <algorithm>

#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<int64_t> one_f_one_b_flush_depths(const PipelineShape& shape) {
  std::vector<int64_t> depths = usable_in_flight(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    depths[stage] = std::min(depths[stage], StageTurns(shape, stage).most_of_one_replica(shape.microbatches));
  return depths;
}

std::vector<Action> one_f_one_b_flush(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const StageTurns turns(shape, stage);
  return interval_order(turns, replica, turns.run_ahead(usable_in_flight(shape)[stage]), kWholeBackward,
                        span);
}

}  // namespace pipewright

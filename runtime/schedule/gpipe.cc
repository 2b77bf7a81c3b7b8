// GPipe (Huang et al., NeurIPS 2019, section 2.3): all forwards of an update interval, then all its
// backwards. Backwards run in the order of minibatches, so that gradients add up in it. Three stages, four
// microbatches, every action one unit of time:
//
//   rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3
//   rank 1  stage 1 replica 0 | .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 ..
//   rank 2  stage 2 replica 0 | .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. ..
#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {

std::vector<int64_t> gpipe_depths(const PipelineShape& shape) {
  std::vector<int64_t> depths;
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    depths.push_back(StageTurns(shape, stage).most_of_one_replica(shape.microbatches));
  return depths;
}

std::vector<Action> gpipe(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  return interval_order(StageTurns(shape, stage), replica, shape.microbatches, kWholeBackward, span);
}

}  // namespace pipewright

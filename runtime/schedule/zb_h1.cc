// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2): the backward is split, the
// part of the weights waits until there is nothing to hurry, and every stage keeps as many minibatches in
// flight as the first. Three stages, depths 3-3-3, four microbatches, every action one unit of time:
//
//   rank 0  stage 0 replica 0 | F0  F1  F2  ..  ..  BI0 BW0 F3  BI1 BW1 BI2 BW2 BI3 BW3
//   rank 1  stage 1 replica 0 | ..  F0  F1  ..  BI0 F2  BI1 BW0 F3  BI2 BW1 BI3 BW2 BW3
//   rank 2  stage 2 replica 0 | ..  ..  F0  BI0 F1  BI1 F2  BI2 BW0 F3  BI3 BW1 BW2 BW3
//
// A stage has two distances: it runs `ahead` forwards ahead of the first part of the backward and `hold`
// ahead of the second. `hold` is what its depth allows; `ahead` falls evenly from hold at the first stage to
// 0 at the last. With depths p (of p stages) that is ZB-H1; with depths 2p - 1 the same rule gives the
// warm-up of ZB-H2, with depths p - s the times and memory of 1f1b-flush.
#include <algorithm>

#include "runtime/schedule/order.h"
#include "runtime/schedule/schedules.h"

namespace pipewright {
namespace {

struct Distances {
  int64_t ahead = 0;
  int64_t hold = 0;
};

std::vector<Distances> distances(const PipelineShape& shape) {
  const int64_t last = shape.stages() - 1;
  std::vector<Distances> all(shape.stages());
  if (last == 0) return all;  // nothing to overlap with
  for (int64_t stage = 0; stage <= last; ++stage) {
    const int64_t own = StageTurns(shape, stage).run_ahead(shape.in_flight[stage]);
    if (stage == 0) {
      all[0] = {own, own};
      continue;
    }
    const int64_t evenly = all[0].hold * (last - stage) / last;
    // Not further ahead than the stage before, or both would wait for each other.
    all[stage] = {std::min({own, evenly, all[stage - 1].ahead}), std::min(own, all[0].hold)};
  }
  return all;
}

}  // namespace

std::vector<int64_t> zb_h1_depths(const PipelineShape& shape) {
  std::vector<int64_t> depths;
  const std::vector<Distances> all = distances(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage)
    depths.push_back(
        StageTurns(shape, stage).most_of_one_replica(std::min(all[stage].hold + 1, shape.microbatches)));
  return depths;
}

std::vector<Action> zb_h1(const PipelineShape& shape, int64_t stage, int64_t replica, Span span) {
  const Distances at = distances(shape)[stage];
  return interval_order(StageTurns(shape, stage), replica, at.ahead, at.hold, span);
}

}  // namespace pipewright

// How far stages run ahead.
#include <algorithm>

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<int64_t> usable_in_flight(const PipelineShape& shape) {
  std::vector<int64_t> depths = shape.in_flight;
  int64_t ahead = 0;
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    if (!shape.trains(stage)) {
      depths[stage] = 1;
      continue;
    }
    const StageTurns turns(shape, stage);
    if (stage > shape.frozen_stages) depths[stage] = turns.depth_that_runs_ahead(ahead, depths[stage]);
    ahead = turns.run_ahead(depths[stage]);
  }
  return depths;
}

std::vector<int64_t> pipedream_in_flight(const std::vector<int64_t>& replicas) {
  std::vector<int64_t> depths(replicas.size());
  int64_t ranks = 0;
  for (size_t stage = replicas.size(); stage-- > 0;) {
    ranks += replicas[stage];
    depths[stage] = (ranks + replicas[stage] - 1) / replicas[stage];
  }
  return depths;
}

}  // namespace pipewright

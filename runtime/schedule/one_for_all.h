// A pipeline whose stages split minibatches, for what asks for times alone: as one whose stages do not.
#pragma once

#include <vector>

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Every stage that splits is one replica that takes each minibatch, and its exchange of gradients a part of
/// its update. `times` are of the largest part of each stage (StageTimes), so nothing is later than with all
/// replicas; and as late where one replica of each stage has most of all.
struct OneForAll {
  PipelineShape shape;
  std::vector<StageTimes> times;
};
OneForAll one_for_all(const PipelineShape& shape, const std::vector<StageTimes>& times);

/// The options for it: links and queues are the ranks' own.
SimulationOptions on_own_links(SimulationOptions options);

}  // namespace pipewright

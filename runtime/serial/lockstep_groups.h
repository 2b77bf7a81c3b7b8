// Which pipelines average their weights under "adpsgd-lockstep", written down for a whole training.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/groups/group_log.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// Of pipelines that take minibatches in turn, over the spans of a plan of so many stages: as a log of groups
/// would have them. `interval`: minibatches of a pipeline's update.
GroupsByStage lockstep_groups(size_t stages, int64_t pipelines, int64_t interval, uint64_t seed,
                              const std::vector<Span>& spans);

}  // namespace pipewright

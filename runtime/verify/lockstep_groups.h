// Which pipelines average their weights under "adpsgd-lockstep", written down for a whole training.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "runtime/groups/group_log.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// Of the plan's N > 1 pipelines, over its spans: as a log of groups would have them.
GroupsByStage lockstep_groups(const Plan& plan, const TrainingRules& rules, const std::vector<Span>& spans);

}  // namespace pipewright

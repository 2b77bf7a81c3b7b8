// What other programs that train pipelines take of a plan: one that drains before every update and whose
// replicas do the same.
#pragma once

#include <cstdint>
#include <string>

#include "graph/plan.h"

namespace pipewright {

/// The replicas of each stage. PlanError "plan: PROGRAM cannot hold ..." unless weights are read as they are
/// after the last update, every stage has equally many replicas, which take whole minibatches in turns and
/// of an update as many each, and no stage is frozen or recomputes.
int64_t synchronous_replicas(const Plan& plan, const std::string& program);

}  // namespace pipewright

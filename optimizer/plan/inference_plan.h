// A plan for answering: forward only, of least latency with a minibatch every so often.
#pragma once

#include "graph/plan.h"
#include "graph/profile.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// The depths are those that keep such a pipeline full; `predicted` has forwards alone. InfeasibleError, with
/// the least period that is possible, if there is none.
Plan inference_plan(const Question& question, double period_seconds, const Profile& profile);

}  // namespace pipewright

// What the search found, as a plan document.
#pragma once

#include "graph/plan.h"
#include "graph/profile.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Stages with nodes, layers, ranks and shares, numbered from rank 0 on where the search leaves the devices
/// open. Strategy, schedule, depths and digests of profile and topology are the caller's.
Plan plan_of(const Solution& solution, const States& states, const Profile& profile);

}  // namespace pipewright

// Plans that are known before the search, for solve() to begin with.
#pragma once

#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Their stages where the problem's model can be cut like that; without those that run several stages on a
/// rank. What their ranks are is kept where devices are placed. Nothing is said of their periods.
std::vector<Solution> solutions_of(const std::vector<Plan>& plans, const Problem& problem,
                                   const Profile& profile);

}  // namespace pipewright

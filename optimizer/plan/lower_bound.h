// What no plan is faster than.
#pragma once

#include <string>

#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"
#include "optimizer/search/widen.h"

namespace pipewright {

/// What no plan that the problem allows is faster than. The period of an exact search is itself that. Where
/// times add up it is the sum of all work, where nothing better is known the work shared out evenly.
double bound_seconds(const Problem& q, const PlanRequest& request, const WideSolution* wide,
                     const Solution& solution);

/// All work, shared out evenly over the devices by their pace.
double work_bound_seconds(const Problem& q);

/// Which plans bound_seconds() speaks of.
std::string family_of(const PlanRequest& request, const Problem& q);

}  // namespace pipewright

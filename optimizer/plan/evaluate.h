// The price of a plan that is there, from profile, topology and request (optimizer/price/price.h).
#pragma once

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/price/price.h"

namespace pipewright {

/// PlanError as evaluate_plan() says.
PlanCost cost_of_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                      const PlanRequest& request);

}  // namespace pipewright

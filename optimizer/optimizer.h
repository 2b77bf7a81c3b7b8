// Profile + topology -> plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

struct PlanRequest {
  std::string strategy = "best";       ///< "best", "dp", "straight", "hybrid", "model-parallel"
  std::string objective = "pipewright";  ///< row of the table of cost models: "pipewright", "pipedream"
  int64_t optimizer_slots = 1;         ///< tensors the update rule keeps per parameter: SGD 0, momentum 1, Adam 2
  bool use_all_devices = false;        ///< otherwise fewest devices is the second aim
};

/// Best plan of the strategy under the objective, with in-flight depths chosen by simulation, `predicted` filled, ranks
/// 0.. in stage order. Deterministic: equal inputs give equal bytes. InfeasibleError says which limit binds and what would
/// fit; InputError for an unknown strategy or objective, or a topology this search does not take.
Plan make_plan(const Profile& profile, const Topology& topology, const PlanRequest& request);

/// Fills `predicted` of a plan by direct sums over its nodes (no search tables): the independent second opinion.
/// PlanError if the plan does not cover the profile's nodes.
Prediction evaluate_plan(const Plan& plan, const Profile& profile, const Topology& topology, const PlanRequest& request);

}  // namespace pipewright

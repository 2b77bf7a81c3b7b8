// A run whose plan changes, priced before it runs: what each plan takes for its minibatches, and each change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/plan_moves.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

struct PricedGeneration {
  int64_t first_minibatch = 0;
  int64_t minibatches = 0;
  Plan plan;  ///< with its prediction
  /// From an empty pipeline to an empty one: simulated, but for a long stretch in its middle, which is
  /// counted at the plan's pace.
  double seconds = 0;
  double fill_seconds = 0;  ///< of them, beyond the plan's pace: to fill the pipeline and to drain it
  // From the plan before; 0 for the first.
  int64_t moved_bytes = 0;
  double move_seconds = 0;  ///< as busiest_seconds() says

  double total_seconds() const { return seconds + move_seconds; }
};

/// By node: its weights, buffers and optimizer tensors.
std::map<std::string, int64_t> state_bytes(const Profile& profile, int64_t optimizer_slots);

/// Weights, buffers and optimizer tensors of the profile's nodes that ranks lack under `next`. A tied
/// parameter counts with each of its nodes.
std::vector<PlanMove> profiled_moves(const Profile& profile, int64_t optimizer_slots, const Plan& last,
                                     const Plan& next);

/// The busiest rank's time for its part of the moves, on the topology's links.
double move_seconds(const std::vector<PlanMove>& moves, const CostInputs& inputs);

/// `plans[i]` trains minibatches from firsts[i] on, the last one up to `minibatches`; firsts[0] is 0, they
/// rise, and those at or behind the end do not come. PlanError as evaluate_plan says, with the plan's name in
/// `names`.
std::vector<PricedGeneration> price_generations(const std::vector<Plan>& plans,
                                                const std::vector<std::string>& names,
                                                const std::vector<int64_t>& firsts, int64_t minibatches,
                                                const Profile& profile, const Topology& topology,
                                                const PlanRequest& request);

}  // namespace pipewright

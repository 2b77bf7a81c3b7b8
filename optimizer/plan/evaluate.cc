#include "optimizer/plan/evaluate.h"

#include <string>

#include "graph/error.h"
#include "optimizer/plan/inference_plan.h"

namespace pipewright {

PlanCost cost_of_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                      const PlanRequest& request) {
  demand_training_plan(plan);
  const Dataflow flow(profile, request.class_profiles);
  return {plan, loads_of_plan(plan, flow), requested_cost_inputs(profile, topology, request)};
}

Prediction evaluate_plan(const Plan& plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request) {
  if (plan.world_size > topology.device_count()) {
    throw InfeasibleError("plan: needs " + std::to_string(plan.world_size) + " devices; the topology has " +
                          std::to_string(topology.device_count()));
  }
  if (is_for_inference(plan)) {
    const Profile forward = profile_for_inference(profile);
    return inference_price(plan, Dataflow(forward, request.class_profiles),
                           requested_cost_inputs(forward, topology, request));
  }
  return price(plan, cost_of_plan(plan, profile, topology, request), profile.minibatch_samples);
}

}  // namespace pipewright

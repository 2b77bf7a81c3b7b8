#include "optimizer/plan/inference_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/strategies.h"
#include "graph/units.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/cost/placed.h"
#include "optimizer/plan/found_plan.h"
#include "optimizer/price/plan_cost.h"
#include "optimizer/search/inference.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

/// The least period, to a percent, with which there is a plan for answering; nothing if there is none.
std::optional<double> least_inference_period(const Question& question, double impossible) {
  double low = impossible;
  double high = 2 * low;
  while (!search_inference(question, high)) {
    if (high > kMostSeconds) return std::nullopt;
    low = high;
    high *= 2;
  }
  while (high > 1.01 * low) {
    const double middle = low + (high - low) / 2;
    (search_inference(question, middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

Profile profile_of_answers(const Profile& profile) {
  double device = 0, host = 0;
  for (const ProfiledNode& node : profile.nodes) {
    device += node.forward_seconds + node.gap_pass().forward_seconds;
    host += node.launch_pass().forward_seconds;
  }
  Profile made = profile;
  for (ProfiledNode& node : made.nodes) {
    node.forward_seconds = host > device ? node.launch_pass().forward_seconds
                                         : node.forward_seconds + node.gap_pass().forward_seconds;
    node.forward_launch_seconds = node.backward_launch_seconds = {};
    node.forward_gap_seconds = node.backward_gap_seconds = {};
  }
  return made;
}

bool is_for_inference(const Plan& plan) { return plan.strategy == kInferenceStrategy; }

void demand_training_plan(const Plan& plan) {
  if (is_for_inference(plan))
    throw PlanError(
        "plan: strategy 'inference' runs forward only, without a schedule of training",
        "pipewright-optimizer evaluate prices it; plan without --for inference makes one to train by.");
}

Plan inference_plan(const Question& question, double period_seconds, const Dataflow& flow) {
  const std::optional<InferenceAnswer> found = search_inference(question, period_seconds);
  if (!found) {
    const std::optional<double> least = least_inference_period(question, period_seconds);
    throw InfeasibleError(
        "no plan on " + std::to_string(question.devices) + " devices takes a minibatch every " +
            format_seconds(period_seconds) + (question.memory_bytes > 0 ? " within the memory" : ""),
        least ? "--period " + format_seconds(*least) + " is possible; so are more devices, or faster links."
              : "Give more memory or more devices.");
  }
  Plan plan = plan_of(found->answer, *question.states, flow.profile);
  plan.strategy = kInferenceStrategy;
  plan.profile_digest = measured_digest(flow.profile);
  std::vector<int64_t> replicas;
  for (const FoundStage& stage : found->answer.stages) replicas.push_back(stage.replicas);
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  for (size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = depths[s];
  plan.predicted = inference_price(plan, flow, question.inputs);
  return plan;
}

Prediction inference_price(const Plan& plan, const Dataflow& flow, CostInputs inputs) {
  inputs.forward_only = true;
  const std::vector<StageLoad> loads = loads_of_plan(plan, flow);
  const PlacedPrice placed = price_placed(loads, plan.stages, inputs);
  Prediction prediction;
  prediction.minibatch_seconds = placed.total_seconds();
  double forwards = 0;
  for (size_t s = 0; s < loads.size(); ++s) {
    StagePrediction stage;
    stage.compute_seconds = placed.replica_seconds[s];
    stage.receive_seconds = placed.receive_seconds[s];
    if (s > 0) prediction.stages[s - 1].send_seconds = stage.receive_seconds;
    stage.memory = inference_memory(loads[s]);
    prediction.stages.push_back(stage);
    forwards += loads[s].forward_seconds;
  }
  const double work = std::accumulate(placed.replica_seconds.begin(), placed.replica_seconds.end(), 0.0);
  prediction.bottleneck = "latency " + format_seconds(placed.latency_seconds()) + " (" +
                          format_seconds(work) + " of it compute), forward only";
  prediction.lower_bound_seconds =
      std::min(prediction.minibatch_seconds, shared_out_seconds(forwards, plan.stages, inputs));
  if (flow.profile.minibatch_samples > 0 && prediction.minibatch_seconds > 0)
    prediction.samples_per_second =
        static_cast<double>(flow.profile.minibatch_samples) / prediction.minibatch_seconds;
  return prediction;
}

}  // namespace pipewright

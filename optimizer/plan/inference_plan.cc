#include "optimizer/plan/inference_plan.h"

#include <algorithm>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/units.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/cost/placed.h"
#include "optimizer/plan/found_plan.h"
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

Plan inference_plan(const Question& question, double period_seconds, const Profile& profile) {
  const std::optional<InferenceAnswer> found = search_inference(question, period_seconds);
  if (!found) {
    const std::optional<double> least = least_inference_period(question, period_seconds);
    throw InfeasibleError(
        "no plan on " + std::to_string(question.devices) + " devices takes a minibatch every " +
            format_seconds(period_seconds) + (question.memory_bytes > 0 ? " within the memory" : ""),
        least ? "--period " + format_seconds(*least) + " is possible; so are more devices, or faster links."
              : "Give more memory or more devices.");
  }
  Plan plan = plan_of(found->answer, *question.states, profile);
  plan.strategy = "manual";
  plan.profile_digest = measured_digest(profile);
  std::vector<int64_t> replicas;
  for (const FoundStage& stage : found->answer.stages) replicas.push_back(stage.replicas);
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  Prediction prediction;
  prediction.minibatch_seconds = found->answer.period_seconds;
  double work = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    plan.stages[s].in_flight = depths[s];
    const InferenceCost& cost = found->stages[s];
    StagePrediction stage;
    stage.compute_seconds = cost.forward_seconds;
    stage.receive_seconds = cost.receive_seconds;
    if (s > 0) prediction.stages[s - 1].send_seconds = cost.receive_seconds;
    const StageLoad load =
        load_between(*question.states, found->answer.stages[s].from, found->answer.stages[s].to);
    stage.memory.weights_bytes = load.parameter_bytes + load.buffer_bytes;
    stage.memory.messages_bytes = 2 * (load.in_bytes + load.out_bytes);
    prediction.stages.push_back(stage);
    work += cost.forward_seconds;
  }
  prediction.bottleneck = "latency " + format_seconds(found->latency_seconds) + " (" + format_seconds(work) +
                          " of it compute), forward only";
  const double forward = question.states->states.back().forward_seconds;
  prediction.lower_bound_seconds =
      std::min(prediction.minibatch_seconds, shared_out_seconds(forward, plan.stages, question.inputs));
  if (profile.minibatch_samples > 0 && prediction.minibatch_seconds > 0) {
    prediction.samples_per_second =
        static_cast<double>(profile.minibatch_samples) / prediction.minibatch_seconds;
  }
  plan.predicted = std::move(prediction);
  return plan;
}

}  // namespace pipewright

#include "optimizer/plan/inference_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/limits.h"
#include "graph/strategies.h"
#include "graph/units.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/chain.h"
#include "optimizer/plan/found_plan.h"
#include "optimizer/plan/neighbours.h"
#include "optimizer/plan/seeds.h"
#include "optimizer/price/plan_cost.h"
#include "optimizer/search/inference.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

constexpr double kSameLatency = 1e-9, kSamePeriod = 1e-9;

/// Where it matters which devices run a stage: local search over chains, each priced where it stands. It
/// begins with what is best as if all links were like one level's.
class PlacedInference {
 public:
  PlacedInference(const Problem& problem, double period_seconds)
      : q_(forward_only(problem)), period_seconds_(period_seconds) {}

  std::optional<InferenceSolution> best() {
    seed();
    while (improved()) {
    }
    if (best_.late > 0) return std::nullopt;
    return InferenceSolution{{best_.chain.stages, best_.period_seconds, best_.chain.devices()},
                             best_.latency_seconds};
  }

 private:
  struct Found {
    Chain chain;
    double late = kInfeasible;  // so much of the period is missing
    double latency_seconds = kInfeasible;
    double period_seconds = 0;
    bool better_than(const Found& other) const {
      if (late != other.late) return late < other.late;
      if (std::abs(latency_seconds - other.latency_seconds) > kSameLatency * latency_seconds)
        return latency_seconds < other.latency_seconds;
      return chain.devices() < other.chain.devices();
    }
  };

  static Problem forward_only(Problem q) {
    q.inputs.forward_only = true;
    q.recompute = Recompute::kNever;
    return q;
  }

  void seed() {
    if (const auto every = every_shape(q_, kInfeasible)) return consider(*every);
    consider(single_stages(q_));
    consider(even_shapes(q_));
    Problem equal = q_;
    equal.inputs.forget_devices();
    for (const TopologyLevel& level : q_.inputs.levels) {
      equal.inputs.bandwidth_bytes_per_second = level.bandwidth_bytes_per_second;
      equal.inputs.latency_seconds = level.latency_seconds;
      for (const double longer : {1.0, 1.5, 3.0})
        if (const auto found = search_inference(equal, longer * period_seconds_))
          consider({shape_of(found->solution.stages)});
    }
  }

  bool improved() {
    if (best_.chain.stages.empty()) return false;
    const Found from = best_;
    for (const Shape& shape : shapes_beside(q_, from.chain)) {
      consider(placed_like(shape, from.chain));
      consider({shape});
    }
    for (Chain& chain : with_devices_moved(q_, from.chain)) consider(std::move(chain));
    return best_.better_than(from);
  }

  void consider(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes)
      for (Chain& chain : chains_of(q_, shape)) consider(std::move(chain));
  }

  void consider(Chain chain) {
    if (!chain.allowed_by(q_)) return;
    std::vector<StageLoad> loads;
    std::vector<Stage> stages;
    for (FoundStage& found : chain.stages) {
      StageLoad load = load_between(*q_.states, found.from, found.to);
      load.workspace = workspace_between(*q_.states, found.from, found.to);
      const int64_t limit = memory_limit_bytes(q_.inputs, q_.memory_bytes, found.ranks);
      if (limit > 0 && inference_memory_bytes(load) > limit) return;
      if (!q_.inputs.speeds.empty()) {
        std::vector<double> seconds;
        for (const int64_t rank : found.ranks) seconds.push_back(compute_seconds_on(load, q_.inputs, rank));
        found.shares = best_shares(seconds);
      }
      Stage& stage = stages.emplace_back();
      stage.ranks = found.ranks;
      stage.shares = found.shares;
      loads.push_back(std::move(load));
    }
    const PlacedPrice price = price_placed(loads, stages, q_.inputs);
    const double late = std::max(0.0, price.total_seconds() / period_seconds_ - 1);
    Found found{std::move(chain), late > kSamePeriod ? late : 0, price.latency_seconds(),
                price.total_seconds()};
    if (found.better_than(best_)) best_ = std::move(found);
  }

  const Problem q_;
  const double period_seconds_;
  Found best_;
};

/// The least period, to a percent, with which there is a plan for inference; nothing if there is none.
std::optional<double> least_inference_period(const Problem& problem, double impossible) {
  double low = impossible;
  double high = 2 * low;
  while (!chain_for_inference(problem, high)) {
    if (high > kMostSeconds) return std::nullopt;
    low = high;
    high *= 2;
  }
  while (high > 1.01 * low) {
    const double middle = low + (high - low) / 2;
    (chain_for_inference(problem, middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

Profile profile_for_inference(const Profile& profile) {
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

std::optional<InferenceSolution> chain_for_inference(const Problem& problem, double period_seconds) {
  if (problem.inputs.placed()) return PlacedInference(problem, period_seconds).best();
  return search_inference(problem, period_seconds);
}

bool is_for_inference(const Plan& plan) { return plan.strategy == kInferenceStrategy; }

void demand_training_plan(const Plan& plan) {
  if (is_for_inference(plan))
    throw PlanError(
        "plan: strategy 'inference' runs forward only, without a schedule of training",
        "pipewright-optimizer evaluate prices it; plan without --for inference makes one to train by.");
}

Plan inference_plan(const Problem& problem, double period_seconds, const Dataflow& flow) {
  const std::optional<InferenceSolution> found = chain_for_inference(problem, period_seconds);
  if (!found) {
    const std::optional<double> least = least_inference_period(problem, period_seconds);
    throw InfeasibleError(
        "no plan on " + std::to_string(problem.devices) + " devices takes a minibatch every " +
            format_seconds(period_seconds) + (problem.memory_bytes > 0 ? " within the memory" : ""),
        least ? "--period " + format_seconds(*least) + " is possible; so are more devices, or faster links."
              : "Give more memory or more devices.");
  }
  Plan plan = plan_of(found->solution, *problem.states, flow.profile);
  plan.strategy = kInferenceStrategy;
  plan.profile_digest = measured_digest(flow.profile);
  std::vector<int64_t> replicas;
  for (const FoundStage& stage : found->solution.stages) replicas.push_back(stage.replicas);
  const std::vector<int64_t> depths = pipedream_in_flight(replicas);
  for (size_t s = 0; s < plan.stages.size(); ++s) plan.stages[s].in_flight = depths[s];
  plan.predicted = inference_price(plan, flow, problem.inputs);
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

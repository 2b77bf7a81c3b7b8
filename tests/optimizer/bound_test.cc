// Bounds against plans: whatever finds a plan, none that a problem allows is below what is said of it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/lower_bound.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "tests/optimizer/tiny_problem.h"
#include "tests/support/long.h"

namespace pipewright::testing {
namespace {

Profile profile_of_any_device(std::mt19937& random) {
  Profile profile = tiny_profile(random);
  if (pick(random, 0, 1) == 0) profile.device = "cuda";  // whose sums over replicas go in rings
  if (pick(random, 0, 2) == 0) launch_by_host(random, &profile);
  if (pick(random, 0, 1) == 0)
    for (ProfiledNode& node : profile.nodes) {  // which sums take long
      node.parameter_bytes *= 10;
      node.trainable_parameter_bytes *= 10;
    }
  return profile;
}

/// Of the plans that a problem of no strategy allows: as bound_seconds() has it, above no plan found or not.
double bound_of_all(const Profile& profile, const Topology& topology, const PlanRequest& rules,
                    const Dataflow& flow) {
  const States states = enumerate_states(flow, topology.memory_bytes > 0);
  Problem problem;
  problem.states = &states;
  problem.inputs = requested_cost_inputs(profile, topology, rules);
  problem.devices = topology.device_count();
  problem.memory_bytes = topology.memory_bytes;
  problem.recompute = Recompute::kWhereNeeded;
  search_by_rules(rules, &problem);
  if (problem.inputs.placed()) return bound_seconds(problem, rules, nullptr, {});
  const std::optional<Solution> solution = search(problem);
  return solution ? bound_seconds(problem, rules, nullptr, *solution) : 0;
}

std::optional<Plan> found_by(const Profile& profile, const Topology& topology, const PlanRequest& request) {
  try {
    return make_plan(profile, topology, request);
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE(
    "A plan for devices that hosts launch has the price that it is evaluated with, and fits as it is "
    "checked") {
  std::mt19937 random(48);
  const std::pair<const char*, const char*> kinds[] = {
      {"1f1b", "stash"}, {"1f1b", "2bw"}, {"gpipe", "flush"}, {"1f1b-flush", "flush"}, {"zb-h1", "flush"}};
  int64_t plans = 0;
  for (int64_t c = 0; c < 300; ++c) {
    Profile profile = tiny_profile(random);
    launch_by_host(random, &profile);
    Topology topology = flat_topology(pick(random, 1, 4), 1e6, 1e-5, 0);
    if (pick(random, 0, 2) == 0) topology.memory_bytes = limited_memory(random, profile, topology);
    PlanRequest request;
    std::tie(request.schedule, request.weights) = kinds[pick(random, 0, 4)];
    const std::optional<Plan> plan = found_by(profile, topology, request);
    if (!plan) continue;
    ++plans;
    CAPTURE(c, plan->shape_text(), request.schedule, request.weights, topology.memory_bytes);
    const Prediction evaluated = evaluate_plan(*plan, profile, topology, request);
    CHECK(evaluated.minibatch_seconds == Approx(plan->predicted->minibatch_seconds));
    for (const StagePrediction& stage : evaluated.stages)
      if (topology.memory_bytes > 0) CHECK(stage.memory.total_bytes() <= topology.memory_bytes);
  }
  CHECK(plans > 200);
}

TEST_CASE("A class of devices with the profile that is planned for is no other device") {
  std::mt19937 random(49);
  for (int64_t c = 0; c < 100; ++c) {
    Profile profile = tiny_profile(random);
    launch_by_host(random, &profile);
    const double launched = launched_factor(profile.nodes);
    const Topology alike = flat_topology(2, 1e9, 0, 0);
    Topology classes = alike;
    classes.devices.resize(2);
    classes.devices[1].device_class = "X";
    PlanRequest request, of_none;
    request.strategy = of_none.strategy = "dp";
    request.class_profiles["X"] = profile;
    CAPTURE(c, launched);
    const std::optional<Plan> plan = found_by(profile, classes, request);
    const std::optional<Plan> same = found_by(profile, alike, of_none);
    if (!plan || !same) continue;
    const std::vector<int64_t>& shares = plan->stages[0].shares;
    CHECK(std::all_of(shares.begin(), shares.end(), [&](int64_t share) { return share == shares[0]; }));
    CHECK(plan->predicted->minibatch_seconds == Approx(same->predicted->minibatch_seconds).epsilon(1e-6));
  }
}

TEST_CASE("No plan that a strategy, a tighter limit or chance finds is below another's bound") {
  const char* set = std::getenv("PIPEWRIGHT_PLANNER_CASES");
  const int64_t cases = set != nullptr ? std::atoll(set) : is_long() ? 5000 : 120;
  const char* seed = std::getenv("PIPEWRIGHT_PLANNER_SEED");
  std::mt19937 random(seed != nullptr ? std::atoi(seed) : 47);
  const std::pair<const char*, const char*> kinds[] = {{"1f1b", "stash"},       {"1f1b", "2bw"},
                                                       {"1f1b", "2bw"},         {"gpipe", "flush"},
                                                       {"1f1b-flush", "flush"}, {"zb-h1", "flush"}};
  int64_t compared = 0, tight = 0;
  for (int64_t c = 0; c < cases; ++c) {
    const Profile profile = profile_of_any_device(random);
    Topology topology = tiny_problem(random, profile).topology;
    for (TopologyLevel& level : topology.levels)
      if (pick(random, 0, 3) == 0) level.exchange_bytes_per_second = level.bandwidth_bytes_per_second / 2;
    PlanRequest request;
    std::tie(request.schedule, request.weights) = kinds[pick(random, 0, 5)];
    if (pick(random, 0, 1) == 0 && request.weights == "2bw") request.microbatches = topology.device_count();
    const PlanRequest rules = with_run_rules(request, topology.device_count());
    const Dataflow flow(profile, {}, ties_of(rules));
    const double all = bound_of_all(profile, topology, rules, flow);
    CAPTURE(c, topology.to_json().dump(), request.schedule, request.weights, rules.microbatches,
            profile.device);
    std::map<std::string, double> bounds;  // of what a strategy finds
    double least = 1e300;
    const auto none_above = [&](const Plan& plan, const std::string& strategy) {
      const double seconds = plan.predicted->minibatch_seconds;
      CAPTURE(plan.shape_text(), strategy);
      CHECK(all <= seconds * (1 + 1e-9));
      for (const auto& [name, bound] : bounds)
        if (name == "best" || name == strategy) CHECK(bound <= seconds * (1 + 1e-9));
      least = std::min(least, seconds);
      ++compared;
    };
    for (const char* strategy : {"best", "straight", "hybrid", "dp"}) {
      request.strategy = strategy;
      const std::optional<Plan> plan = found_by(profile, topology, request);
      if (!plan) continue;
      bounds[strategy] = plan->predicted->lower_bound_seconds;
      none_above(*plan, strategy);
      Topology tighter = topology;
      for (const StagePrediction& stage : plan->predicted->stages)
        tighter.memory_bytes = std::max(tighter.memory_bytes, stage.memory.total_bytes());
      tighter.memory_bytes = tighter.memory_bytes * 9 / 10;
      if (topology.memory_bytes > 0) tighter.memory_bytes = topology.memory_bytes * 9 / 10;
      if (const std::optional<Plan> other = found_by(profile, tighter, request)) none_above(*other, strategy);
    }
    for (int chain = 0; chain < 20; ++chain) {
      Plan plan = random_chain(random, profile, topology.device_count(), true);
      try {
        const std::optional<Plan> priced = priced_plan(
            std::move(plan),
            {&flow, requested_cost_inputs(profile, topology, rules), rules_of(rules), topology.memory_bytes});
        if (priced) none_above(*priced, "");
      } catch (const PlanError&) {  // against the order of values, or a tied parameter in several stages
      }
    }
    if (all > 0.95 * least) ++tight;
  }
  CHECK(compared > 10 * cases);
  CHECK(tight > cases / 5);
}

}  // namespace pipewright::testing

// Least latency at a rate: against every plan there is.
#include "optimizer/search/inference.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "graph/error.h"
#include "optimizer/cost/frozen_profile.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/inference_plan.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

double brute_force(const Problem& q, double period) {
  const States& states = *q.states;
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(int, int64_t, double)> extend = [&](int from, int64_t devices, double latency) {
    if (from == states.last()) {
      best = std::min(best, latency);
      return;
    }
    for (const int to : states.after(from)) {
      StageLoad load = load_between(states, from, to);
      load.workspace = workspace_between(states, from, to);
      const InferenceCost cost = inference_cost(load, q.inputs);
      if (q.memory_bytes > 0 && cost.memory_bytes > q.memory_bytes) continue;
      for (int64_t replicas = 1; replicas <= devices; ++replicas) {
        const double most = static_cast<double>(replicas) * period * (1 + 1e-9);
        if (cost.forward_seconds > most || cost.link_seconds > most) continue;
        extend(to, devices - replicas, latency + cost.forward_seconds + cost.receive_seconds);
      }
    }
  };
  extend(0, q.devices, 0);
  return best;
}

TEST_CASE("inference: the least latency of all plans that keep the rate") {
  std::mt19937 random(77);
  int found_some = 0;
  int found_none = 0;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const Profile profile = testing::random_profile(random, static_cast<int>(testing::pick(random, 2, 6)),
                                                    testing::pick(random, 0, 1) == 0, 40);
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, true);
    Problem q;
    q.states = &states;
    q.devices = testing::pick(random, 1, 4);
    q.inputs = cost_inputs(profile, flat_topology(q.devices, 1e6, 1e-5, 0), 1);
    if (testing::pick(random, 0, 2) == 0) q.memory_bytes = testing::pick(random, 5, 60) * 1000;
    const double period = static_cast<double>(testing::pick(random, 1, 12)) * 1e-3;
    const double expected = brute_force(q, period);
    const std::optional<InferenceSolution> found = search_inference(q, period);
    REQUIRE(found.has_value() == std::isfinite(expected));
    found ? ++found_some : ++found_none;
    if (!found) continue;
    CHECK(found->latency_seconds == Approx(expected).epsilon(1e-9));
    CHECK(found->solution.period_seconds <= period * (1 + 1e-9));
    CHECK(found->solution.devices <= q.devices);
  }
  CHECK(found_some > 50);
  CHECK(found_none > 30);
}

TEST_CASE("inference: a plan says its latency, or the least period there is") {
  std::mt19937 random(5);
  Profile profile = testing::random_profile(random, 6, true, 100);
  for (ProfiledNode& node : profile.nodes) node.forward_seconds = 1e-3;
  PlanRequest request;
  request.inference_period_seconds = 2e-3;
  const Plan plan = make_plan(profile, flat_topology(6, 1e9, 0, 0), request);
  CHECK_THAT(plan.predicted->bottleneck, Catch::Contains("latency"));
  CHECK(plan.predicted->minibatch_seconds <= 2e-3 * (1 + 1e-9));
  request.inference_period_seconds = 1e-4;
  CHECK_THROWS_AS(make_plan(profile, flat_topology(6, 1e9, 0, 0), request), InfeasibleError);
}

TEST_CASE(
    "inference: a plan evaluated again has the price it was made with, which is what was searched for") {
  std::mt19937 random(78);
  int placed = 0, found = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    Profile profile = testing::random_profile(random, static_cast<int>(testing::pick(random, 2, 6)),
                                              testing::pick(random, 0, 1) == 0, 40);
    if (round % 3 == 0) testing::launch_by_host(random, &profile);
    Topology topology = flat_topology(testing::pick(random, 1, 4), 1e6, 1e-5, 0);
    if (round % 2 == 0) topology.levels.push_back({2, 1e5, 1e-4, testing::pick(random, 0, 1) == 0});
    PlanRequest request;
    request.inference_period_seconds = static_cast<double>(testing::pick(random, 1, 12)) * 1e-3;
    Plan plan;
    try {
      plan = make_plan(profile, topology, request);
    } catch (const InfeasibleError&) {
      continue;
    }
    ++found;
    placed += round % 2 == 0 ? 1 : 0;
    CHECK(is_for_inference(plan));
    CHECK_NOTHROW(plan.validate("plan"));
    CHECK(plan.predicted->minibatch_seconds <= request.inference_period_seconds * (1 + 3e-9));
    const Prediction again = evaluate_plan(plan, profile, topology, {});
    CHECK(again.minibatch_seconds == plan.predicted->minibatch_seconds);
    CHECK(again.bottleneck == plan.predicted->bottleneck);
    CHECK(again.lower_bound_seconds == plan.predicted->lower_bound_seconds);
    CHECK_THROWS_AS(cost_of_plan(plan, profile, topology, {}), PlanError);
  }
  CHECK(found > 50);
  CHECK(placed > 20);
}

TEST_CASE("inference: the host that launches a device's kernels takes its time, since nothing is captured") {
  std::mt19937 random(5);
  Profile profile = testing::random_profile(random, 6, true, 100);
  profile.device = "cuda:0 (drawn)";
  for (ProfiledNode& node : profile.nodes) {
    node.forward_seconds = 1e-3;
    node.forward_launch_seconds = node.backward_launch_seconds = 5e-3;
    node.forward_gap_seconds = node.backward_gap_seconds = 1e-4;
  }
  PlanRequest request;
  request.inference_period_seconds = 2e-3;
  CHECK_THROWS_AS(make_plan(profile, flat_topology(6, 1e9, 0, 0), request), InfeasibleError);
  request.inference_period_seconds = 6e-3;
  const Plan plan = make_plan(profile, flat_topology(6, 1e9, 0, 0), request);
  CHECK(plan.predicted->minibatch_seconds >= 5e-3);
  CHECK(plan.profile_digest == measured_digest(profile));
}

}  // namespace
}  // namespace pipewright

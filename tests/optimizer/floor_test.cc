// floor() against price(): whatever a search leaves aside because of its floor is no faster than that. And
// price() against itself: what is written in two ways costs the same.
#include "optimizer/price/floor.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "graph/error.h"
#include "graph/strategies.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"
#include "tests/optimizer/random_depths.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/long.h"

namespace pipewright::testing {
namespace {

double factor(std::mt19937& random) { return 1 + 0.1 * static_cast<double>(pick(random, 0, 9)); }

Profile profile_with_effects(std::mt19937& random) {
  Profile profile = random_profile(random, static_cast<int>(pick(random, 2, 8)), pick(random, 0, 1) == 0, 50);
  if (pick(random, 0, 2) == 0) profile.device = "cuda";  // whose sums over replicas go in rings
  if (pick(random, 0, 2) == 0) profile.input_seconds = 1e-3 * static_cast<double>(pick(random, 1, 12));
  if (pick(random, 0, 2) == 0) {
    ProfiledCrowd crowd;
    crowd.ranks = pick(random, 2, 4);
    crowd.compute_factor = factor(random);
    crowd.update_factor = factor(random);
    crowd.replicas_compute_factor = factor(random);
    crowd.replicas_update_factor = factor(random);
    profile.whole.crowd = crowd;
  }
  if (pick(random, 0, 2) == 0) {
    const auto seconds = [&] { return 1e-4 * static_cast<double>(pick(random, 0, 9)); };
    profile.whole.update = ProfiledUpdate{seconds(), seconds(), seconds(), seconds()};
  }
  return profile;
}

Topology random_topology(std::mt19937& random) {
  const double rates[] = {1e5, 1e6, 1e7, 1e9};
  const auto rate = [&] { return rates[pick(random, 0, 3)]; };
  const double latency = pick(random, 0, 1) == 0 ? 2e-4 : 0;
  Topology topology = flat_topology(pick(random, 1, 4), rate(), latency, 0);
  if (pick(random, 0, 1) == 0) topology.levels.push_back({pick(random, 2, 3), rate(), 2 * latency, false});
  for (TopologyLevel& level : topology.levels) {
    level.shared = pick(random, 0, 2) == 0;
    if (pick(random, 0, 2) == 0) level.exchange_bytes_per_second = level.bandwidth_bytes_per_second / 3;
    if (pick(random, 0, 2) == 0) level.core_seconds_per_message = 1e-4;
    if (pick(random, 0, 2) == 0) level.core_seconds_per_byte = 1e-8;
  }
  if (pick(random, 0, 3) == 0)
    topology.factors = {factor(random), factor(random), factor(random), factor(random), factor(random), 1};
  if (pick(random, 0, 3) == 0) topology.cores = {topology.levels[0].count, pick(random, 1, 2)};
  for (int64_t d = 0, differ = pick(random, 0, 2); differ == 0 && d < topology.device_count(); ++d)
    topology.devices.push_back({.host = "host", .relative_speed = pick(random, 0, 1) == 0 ? 1 : 0.4});
  return topology;
}

PlanRequest random_rules(std::mt19937& random) {
  const std::pair<const char*, const char*> rules[] = {
      {"1f1b", "stash"},  {"1f1b", "2bw"},         {"1f1b", "vertical"}, {"gpipe", "flush"},
      {"zb-h1", "flush"}, {"1f1b-flush", "flush"}, {"1f1b", "paci"},     {"1f1b", "predict"}};
  PlanRequest request;
  std::tie(request.schedule, request.weights) = rules[pick(random, 0, 7)];
  if (request.weights == "vertical") request.strategy = "straight";
  return request;
}

/// Trains only what is behind some of the first nodes.
void freeze_at_random(std::mt19937& random, Profile* profile) {
  const auto frozen = static_cast<size_t>(pick(random, 0, static_cast<int64_t>(profile->nodes.size()) - 1));
  for (size_t v = 0; v < frozen; ++v) {
    ProfiledNode& node = profile->nodes[v];
    node.backward_input_seconds = node.backward_weight_seconds = 0;
    node.trainable_parameter_bytes = node.saved_bytes = 0;
  }
  profile->frozen.nodes = frozen;
}

void mark_frozen_stages(const Profile& profile, Plan* plan) {
  size_t nodes = 0;
  for (Stage& stage : plan->stages) {
    nodes += stage.nodes.size();
    stage.frozen = nodes <= profile.frozen.nodes;
    stage.recompute = stage.recompute && !stage.frozen;
  }
}

/// A stage updates no less often than one does that runs as far ahead as there are devices behind it.
void check_rounds(const Plan& plan, const PlanCost& cost) {
  const PipelineShape shape = shape_of(plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StageTurns turns(shape, static_cast<int64_t>(s));
    int64_t later = 0;
    for (size_t behind = s + 1; behind < plan.stages.size(); ++behind)
      later += std::ssize(plan.stages[behind].ranks);
    CAPTURE(plan.shape_text(), s, plan.stages[s].in_flight, plan.stages[s].shares);
    CHECK(turns.round_length() <= minibatches_of_update(turns.cycle_length(), later, cost.inputs));
    CHECK(turns.round_length() < 2 * std::max(turns.cycle_length(), later));
  }
}

}  // namespace

TEST_CASE("No run is below its floor: chains of stages at random, at any depths, by any rules") {
  const char* set = std::getenv("PIPEWRIGHT_PLANNER_CASES");
  const int64_t cases = set != nullptr ? std::atoll(set) : is_long() ? 100000 : 4000;
  const char* seed = std::getenv("PIPEWRIGHT_PLANNER_SEED");
  std::mt19937 random(seed != nullptr ? std::atoi(seed) : 45);
  std::map<std::string, int64_t> tried;
  int64_t tight = 0;
  for (int64_t c = 0; c < cases; ++c) {
    const Profile profile = profile_with_effects(random);
    const Topology topology = random_topology(random);
    PlanRequest request = with_run_rules(random_rules(random), topology.device_count());
    if (pick(random, 0, 3) == 0) request.slow_links = {{0, 1, factor(random) * 3}};
    const Dataflow flow(profile, {}, ties_of(request));
    Plan plan = random_chain(random, profile, topology.device_count(), request.strategy != "straight");
    for (Stage& stage : plan.stages)
      for (size_t q = 0; request.weights != "vertical" && c % 3 == 0 && q < stage.ranks.size(); ++q)
        stage.shares.push_back(pick(random, 1, 3));
    run_by(rules_of(request), &plan);
    const CostInputs inputs = requested_cost_inputs(profile, topology, request);
    std::vector<StageLoad> loads;
    try {
      loads = loads_of_plan(plan, flow);
    } catch (const PlanError&) {
      continue;  // tied parameters in several stages
    }
    PlanCost cost(plan, loads, inputs);
    if (!choose_depths(0, true, &plan, &cost)) continue;
    if ((request.weights == "stash" || request.weights == "predict") && pick(random, 0, 1) == 0)
      deepen_at_random(random, &plan);
    if (request.weights == "paci") check_rounds(plan, cost);
    std::vector<FloorStage> stages;
    for (const Stage& stage : plan.stages)
      stages.push_back({static_cast<int64_t>(stage.ranks.size()), stage.ranks, stage.shares});
    const double floor = Floor(cost.inputs).pace(cost.loads, stages).floor_seconds;
    const double seconds = price_seconds(plan, cost);
    CAPTURE(c, plan.schedule, plan.weights, plan.shape_text(), topology.levels.size());
    CHECK(floor <= seconds * (1 + 1e-9) + 1e-15);
    CHECK(price(plan, cost, profile.minibatch_samples).minibatch_seconds == seconds);
    ++tried[plan.schedule + " " + plan.weights];
    if (floor > 0.95 * seconds) ++tight;
  }
  CHECK(tried.size() == 8);
  for (const auto& [rules, plans] : tried) {
    CAPTURE(rules);
    CHECK(plans > cases / 16);
  }
  CHECK(tight > cases / 5);
}

TEST_CASE("One minibatch at a time: equal devices take as long however they are written") {
  std::mt19937 random(46);
  int recomputing = 0, frozen = 0, updating = 0;
  for (int c = 0; c < 600; ++c) {
    Profile profile = profile_with_effects(random);
    Topology flat = random_topology(random);
    flat.levels.resize(1);
    flat.levels[0].shared = false;
    flat.devices.clear();
    if (pick(random, 0, 3) == 0) freeze_at_random(random, &profile);
    const bool hosts = c % 2 == 0;  // their number would say which ranks have effects on each other
    if (hosts) {
      profile.whole.crowd.reset();
      flat.factors = {};
      flat.cores = {};
    }
    const int64_t devices = flat.device_count();
    PlanRequest request;
    request.strategy = "model-parallel";
    request = with_run_rules(request, devices);
    if (pick(random, 0, 3) == 0) request.slow_links = {{0, 1, factor(random) * 3}};
    Plan plan = random_chain(random, profile, devices, false);
    mark_frozen_stages(profile, &plan);
    run_by(rules_of(request), &plan);
    const auto seconds = [&](const Topology& topology) {
      return evaluate_plan(plan, profile, topology, request).minibatch_seconds;
    };
    double expected = 0;
    try {
      expected = seconds(flat);
    } catch (const PlanError&) {
      continue;  // tied parameters in several stages
    }
    CAPTURE(c, plan.shape_text(), plan.frozen_stages());
    Topology listed = flat;
    listed.devices.assign(static_cast<size_t>(devices), TopologyDevice{});
    listed.devices[0].memory_bytes = int64_t{1} << 40;
    CHECK(seconds(listed) == Approx(expected).epsilon(1e-9));
    // What frozen stages send meanwhile does share links, and where links are shared none is slow by itself.
    const bool alone = plan.frozen_stages() == 0 && request.slow_links.empty();
    if (hosts) {
      Topology several = flat;
      several.levels.insert(several.levels.begin(), {1, 1e3, 1, false});
      CHECK(seconds(several) == Approx(expected).epsilon(1e-9));
      several.levels = {flat.levels[0], flat.levels[0]};
      several.levels[0].count = 2;
      several.levels[1].count = (devices + 1) / 2;
      if (alone) CHECK(seconds(several) == Approx(expected).epsilon(1e-9));
    }
    Topology shared = flat;
    shared.levels[0].shared = true;
    if (alone) CHECK(seconds(shared) == Approx(expected).epsilon(1e-9));
    double step = 0;
    for (const StagePrediction& stage : evaluate_plan(plan, profile, flat, request).stages)
      step += stage.step_seconds;
    updating += step > 0 ? 1 : 0;
    frozen += plan.frozen_stages() > 0 ? 1 : 0;
    for (const Stage& stage : plan.stages) recomputing += stage.recompute ? 1 : 0;
  }
  CHECK(recomputing > 50);
  CHECK(frozen > 20);
  CHECK(updating > 100);
}

}  // namespace pipewright::testing

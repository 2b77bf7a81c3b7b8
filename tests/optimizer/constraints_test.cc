// Plans that obey constraints: against every plan there is.
#include "optimizer/search/constraints.h"

#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "graph/error.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

struct Case {
  Profile profile;
  Problem problem;
  StageConstraints constraints;
};

/// Smallest period of all chains of states that obey; infinity if none does.
double brute_force(const Problem& q, const StageConstraints& constraints,
                   const std::vector<NodeSet>& pinned) {
  const States& states = *q.states;
  double best = std::numeric_limits<double>::infinity();
  std::vector<FoundStage> path;
  const auto price = [&] {
    int64_t later = 0;
    for (const FoundStage& stage : path) later += stage.replicas;
    if (later > q.devices) return;
    const auto count = static_cast<int64_t>(path.size());
    if (count < q.least_stages || (constraints.most_stages > 0 && count > constraints.most_stages)) return;
    if (!constraints.replicas.empty() && constraints.replicas.rbegin()->first >= count) return;
    if (static_cast<int64_t>(pinned.size()) > count) return;
    bool replicated = false;
    double period = 0;
    for (int64_t s = 0; s < count; ++s) {
      const FoundStage& stage = path[s];
      later -= stage.replicas;
      const auto given = constraints.replicas.find(s);
      if (given != constraints.replicas.end() && given->second != stage.replicas) return;
      if (stage.replicas > q.most_replicas) return;
      replicated = replicated || stage.replicas > 1;
      const NodeSet nodes = states.states[stage.to].done - states.states[stage.from].done;
      for (size_t p = 0; p < pinned.size(); ++p) {
        if (static_cast<int64_t>(p) != s && nodes.intersects(pinned[p])) return;
      }
      StageLoad load = load_between(states, stage.from, stage.to);
      load.workspace = workspace_between(states, stage.from, stage.to);
      const int64_t depth = assumed_in_flight(q, later, stage.replicas);
      if (q.memory_bytes > 0 &&
          stage_memory(load, stage.replicas, depth, q.inputs).total_bytes() > q.memory_bytes)
        return;
      period = std::max(period, stage_period(load, stage.replicas, q.inputs).total_seconds());
    }
    if (!q.replicated || replicated) best = std::min(best, period);
  };
  const std::function<void(int, int64_t)> extend = [&](int from, int64_t devices) {
    if (from == states.last()) return price();
    for (const int to : states.after(from)) {
      for (int64_t replicas = 1; replicas <= devices; ++replicas) {
        path.push_back({from, to, replicas});
        extend(to, devices - replicas);
        path.pop_back();
      }
    }
  };
  extend(0, q.devices);
  return best;
}

TEST_CASE("search with constraints finds the best of all plans that obey") {
  std::mt19937 random(31);
  int found_some = 0;
  int found_none = 0;
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const Profile profile = testing::random_profile(random, static_cast<int>(testing::pick(random, 2, 6)),
                                                    testing::pick(random, 0, 1) == 0, 40);
    StageConstraints constraints;
    if (testing::pick(random, 0, 1) == 0) constraints.most_stages = testing::pick(random, 1, 4);
    for (int64_t i = testing::pick(random, 0, 2); i > 0; --i)
      constraints.replicas[testing::pick(random, 0, 2)] = testing::pick(random, 1, 3);
    for (int64_t i = testing::pick(random, 0, 2); i > 0; --i) {
      const auto node = static_cast<size_t>(testing::pick(random, 0, 99)) % profile.nodes.size();
      constraints.pins[profile.nodes[node].name] = testing::pick(random, 0, 2);
    }
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, true);
    Problem q;
    q.states = &states;
    q.devices = testing::pick(random, 1, 4);
    q.inputs = cost_inputs(profile, flat_topology(q.devices, 1e6, 1e-5, 0), 1);
    if (testing::pick(random, 0, 2) == 0) q.memory_bytes = testing::pick(random, 20, 200) * 1000;
    if (testing::pick(random, 0, 3) == 0) q.least_stages = 2;
    if (testing::pick(random, 0, 3) == 0) q.replicated = true;
    if (testing::pick(random, 0, 3) == 0) q.most_replicas = 1;
    const std::vector<NodeSet> pinned = pinned_nodes(profile, constraints);
    const double expected = brute_force(q, constraints, pinned);
    const std::optional<Solution> solution = search_with_constraints(q, constraints, pinned);
    REQUIRE(solution.has_value() == std::isfinite(expected));
    if (!solution) {
      ++found_none;
      continue;
    }
    ++found_some;
    CHECK(solution->period_seconds == Approx(expected).epsilon(1e-9));
    CHECK(solution->devices <= q.devices);
  }
  CHECK(found_some > 50);
  CHECK(found_none > 50);
}

TEST_CASE("a plan obeys") {
  std::mt19937 random(5);
  Profile profile = testing::random_profile(random, 6, true, 100);
  for (ProfiledNode& node : profile.nodes) {
    node.parameters = {node.name + ".weight"};
    node.forward_seconds = 1e-3;
  }
  const Topology topology = flat_topology(5, 1e9, 0, 0);
  PlanRequest request;
  request.constraints.replicas = {{0, 2}, {1, 1}};
  request.constraints.most_stages = 2;
  CHECK(make_plan(profile, topology, request).shape_text() == "2-1");
  request.constraints.pins = {{"layer1", 1}};
  const Plan plan = make_plan(profile, topology, request);
  CHECK(plan.shape_text() == "2-1");
  CHECK(plan.stages[1].layers.front() <= "layer1");
  request.constraints.pins = {{"layer2", 0}, {"layer0", 1}};
  CHECK_THROWS_AS(make_plan(profile, topology, request), InfeasibleError);
  request.constraints.pins.clear();
  request.constraints.replicas = {{0, 9}};
  CHECK_THROWS_AS(make_plan(profile, topology, request), InfeasibleError);
}

}  // namespace
}  // namespace pipewright

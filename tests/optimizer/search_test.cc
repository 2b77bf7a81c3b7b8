// The search against every plan there is.
#include "optimizer/search/search.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "optimizer/search/few_cuts.h"
#include "tests/optimizer/brute_force.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

using testing::BruteForce;
using testing::BruteProblem;
using testing::BruteSolution;
using testing::pick;

CostInputs random_inputs(std::mt19937& random, const Profile& profile) {
  CostInputs inputs;
  const double bandwidths[] = {1e5, 1e6, 3e6, 1e8};
  inputs.bandwidth_bytes_per_second = bandwidths[pick(random, 0, 3)];
  inputs.latency_seconds = pick(random, 0, 1) == 0 ? 0 : 3e-4;
  inputs.update.parts.step_in_place_seconds = profile.whole.step_seconds / 1e4;
  inputs.optimizer_slots = pick(random, 0, 2);
  inputs.buffered_bytes = profile.nodes.size() % 3 * 3000;  // links that hold messages by themselves
  return inputs;
}

Problem problem_of(const BruteProblem& brute, const States& states, const CostInputs& inputs) {
  Problem q;
  q.states = &states;
  q.inputs = inputs;
  q.devices = brute.devices;
  q.memory_bytes = brute.memory_bytes;
  q.all_devices = brute.all_devices;
  q.recompute = brute.recompute;
  if (brute.strategy == "dp") q.single_stage = true;
  if (brute.strategy == "straight" || brute.strategy == "model-parallel") q.most_replicas = 1;
  if (brute.strategy == "straight" || brute.strategy == "hybrid") q.least_stages = 2;
  if (brute.strategy == "hybrid") q.replicated = true;
  if (brute.strategy == "model-parallel") q.all_devices = q.one_in_flight = true;
  return q;
}

int64_t cases(int64_t usual) {
  const char* text = std::getenv("PIPEWRIGHT_SEARCH_CASES");
  return text != nullptr ? std::atoll(text) : usual;
}

struct Counts {
  int64_t problems = 0;
  int64_t infeasible = 0;
  int64_t limited = 0;
  int64_t recomputing = 0;  // stages
};

void compare(const BruteProblem& brute, const Profile& profile, const CostInputs& inputs,
             const States& states, BruteForce* oracle, Counts* counts) {
  const Problem q = problem_of(brute, states, inputs);
  const std::optional<BruteSolution> expected = oracle->best(brute);
  const std::optional<Solution> got = search(q);
  INFO(brute.strategy << ", " << brute.devices << " devices, memory " << brute.memory_bytes << ", all "
                      << brute.all_devices << ", " << profile.nodes.size() << " nodes");
  ++counts->problems;
  counts->limited += brute.memory_bytes > 0;
  counts->infeasible += !expected;
  REQUIRE(got.has_value() == expected.has_value());
  if (!got) return;
  int64_t bytes = 0;
  std::vector<double> periods;
  for (const FoundStage& stage : got->stages) {
    bytes += states.states[stage.from].cut_bytes;
    StageLoad load = load_between(states, stage.from, stage.to);
    load.recompute = stage.recompute;
    counts->recomputing += stage.recompute;
    periods.push_back(stage_period(load, stage.replicas, inputs).total_seconds());
  }
  CHECK(got->period_seconds == Approx(expected->period_seconds).epsilon(3e-9).margin(1e-15));
  CHECK(got->devices == expected->devices);
  CHECK(static_cast<int64_t>(got->stages.size()) == expected->stages);
  if (brute.strategy != "model-parallel") {
    CHECK(testing::levels_of(periods, expected->period_seconds) == expected->levels);
  }
  CHECK(bytes == expected->bytes);
  if (brute.memory_bytes > 0) CHECK(fullest_stage(q, *got).memory.total_bytes() <= brute.memory_bytes);
}

void compare_many(int64_t cases, bool chain, unsigned seed, Recompute recompute, Counts* counts) {
  std::mt19937 random(seed);
  for (int64_t c = 0; c < cases; ++c) {
    const int nodes = static_cast<int>(pick(random, 1, chain ? 7 : c % 20 == 0 ? 7 : 5));
    Profile profile = testing::random_profile(random, nodes, chain, static_cast<int>(pick(random, 30, 80)));
    std::mt19937 of_device(seed + static_cast<unsigned>(c));
    if (c % 5 == 0) testing::launch_by_host(of_device, &profile);
    const CostInputs inputs = random_inputs(random, profile);
    const Dataflow flow(profile);
    INFO("case " << c << " of seed " << seed);
    const States states = enumerate_states(flow, false);
    const States limited_states = enumerate_states(flow, true);
    REQUIRE(states.exact);
    BruteForce oracle(profile, inputs);
    BruteProblem brute;
    const char* names[] = {"best", "hybrid", "straight", "dp", "model-parallel"};
    // Every case asks for the best plan, free and limited; the other strategies take turns.
    for (const std::string strategy : {"best", names[1 + c % 4]}) {
      brute.strategy = strategy;
      brute.devices = pick(random, 1, nodes > 5 && !chain ? 4 : 6);
      brute.all_devices = pick(random, 0, 3) == 0;
      brute.recompute = recompute;
      brute.memory_bytes = 0;
      compare(brute, profile, inputs, states, &oracle, counts);
      brute.memory_bytes = 1;  // any limit: it decides which cuts are looked at
      const std::optional<int64_t> least = oracle.least_memory(brute);
      if (!least) continue;
      brute.memory_bytes = *least + pick(random, 0, 2) * pick(random, 0, 4000);
      if (brute.memory_bytes > 0) compare(brute, profile, inputs, limited_states, &oracle, counts);
      brute.memory_bytes = *least - 1;
      if (brute.memory_bytes > 0) compare(brute, profile, inputs, limited_states, &oracle, counts);
      // What the infeasible case is told: the least memory is exact.
      const Problem q = problem_of(brute, limited_states, inputs);
      const std::optional<Solution> smallest = search_least_memory(q);
      REQUIRE(smallest.has_value());
      CHECK(fullest_stage(q, *smallest).memory.total_bytes() == *least);
    }
  }
}

TEST_CASE("Search equals brute force on random chains") {
  Counts counts;
  compare_many(cases(3600), true, 1, Recompute::kNever, &counts);
  CHECK(counts.problems > 8000);
  CHECK(counts.infeasible > 500);
}

TEST_CASE("Search equals brute force on random DAGs") {
  Counts counts;
  compare_many(cases(3600), false, 2, Recompute::kNever, &counts);
  CHECK(counts.problems > 8000);
  CHECK(counts.infeasible > 500);
}

TEST_CASE("Search equals brute force where stages may recompute, on random chains and DAGs") {
  for (const bool chain : {true, false}) {
    Counts counts;
    compare_many(cases(1500), chain, chain ? 3 : 4, Recompute::kWhereNeeded, &counts);
    CHECK(counts.problems > 2000);
    CHECK(counts.infeasible > 100);
    CHECK(counts.recomputing > 50);
    compare_many(cases(300), chain, chain ? 5 : 6, Recompute::kAlways, &counts);
  }
}

TEST_CASE("More devices than can be listed") {
  // Costs no more than a few: nothing in the search counts devices.
  std::mt19937 random(3);
  Profile profile = testing::random_profile(random, 7, true, 0);
  for (ProfiledNode& node : profile.nodes) node.forward_seconds += 1e-3;
  CostInputs inputs;
  inputs.bandwidth_bytes_per_second = 1e12;
  const Dataflow flow(profile);
  const States states = enumerate_states(flow, false);
  Problem q;
  q.states = &states;
  q.inputs = inputs;
  q.devices = 1 << 20;
  const std::optional<Solution> solution = search(q);
  REQUIRE(solution.has_value());
  CHECK(solution->devices <= q.devices);
  CHECK(solution->period_seconds < 1e-6);
}

TEST_CASE("States of a chain of ten thousand nodes") {
  Profile profile;
  profile.model = "chain";
  for (int v = 0; v < 10000; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    if (v > 0) node.inputs = {profile.nodes.back().outputs[0].name};
    node.outputs = {{node.name + ".out", 1 + v % 7}};
    node.forward_seconds = 1;
    node.parameter_bytes = node.trainable_parameter_bytes = 4;
    node.parameters = {node.name + ".weight"};
    profile.nodes.push_back(node);
  }
  const Dataflow flow(profile);
  const States states = enumerate_states(flow, true);
  CHECK(states.exact);
  CHECK(states.nested);
  REQUIRE(states.size() == 10001);
  CHECK(states.after(9998)[1] == 10000);
  const StageLoad load = load_between(states, 4000, 7000);
  CHECK(load.forward_seconds == 3000);
  CHECK(load.trainable_bytes == 12000);
  CHECK(load.in_bytes == 1 + 3999 % 7);
  CHECK(load.out_bytes == 1 + 6999 % 7);
}

TEST_CASE("Sums of states are those of their nodes") {
  std::mt19937 random(4);
  for (int c = 0; c < 200; ++c) {
    const Profile profile = testing::random_profile(random, 8, false, 40);
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, false);
    for (int i = 0; i < states.size(); ++i) {
      const State& state = states.states[i];
      CHECK(state.cut_bytes == live_bytes(flow, state.done));
      CHECK(state.held_bytes == unsaved_live_bytes(flow, state.done));
      for (int j = i + 1; j < states.size(); ++j) {
        const StateNumbers after = states.after(i);
        const bool listed = std::find(after.begin(), after.end(), j) != after.end();
        CHECK(listed == state.done.is_subset_of(states.states[j].done));
      }
    }
  }
}

TEST_CASE("A stage of a device is told its kernels as a plan's stage is, by its nodes") {
  std::mt19937 random(43);
  int64_t captured = 0, host_bound = 0, device_bound = 0;
  for (int c = 0; c < 200; ++c) {
    Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 2, 8)), true, 40);
    testing::launch_by_host(random, &profile);
    const bool together = c % 2 == 0;
    const Dataflow flow(profile, {}, together ? Ties::kCopies : Ties::kTogether);
    const States states = enumerate_states(flow, false);
    for (int i = 0; i < states.size(); ++i) {
      for (const int j : states.after(i)) {
        PassSeconds computing, launch, gaps;
        const NodeSet nodes = states.states[j].done - states.states[i].done;
        for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v)) {
          computing += profile.nodes[v].pass_seconds();
          launch += profile.nodes[v].launch_pass();
          gaps += profile.nodes[v].gap_pass();
        }
        const double device = computing.sum() + gaps.sum(), host = launch.sum();
        const bool captures = flow.captures && (together || j == states.last());
        const StageLoad load = launched_between(states, i, j);
        CHECK(load_between(states, i, j).compute_seconds() == Approx(computing.sum()));
        INFO("case " << c << ", states " << i << " to " << j << ": device " << device << ", host " << host);
        CHECK(load.captured == captures);
        CHECK(load.forward_seconds + load.backward_seconds ==
              Approx(load.captured ? computing.sum() : std::max(device, host)));
        CHECK(load.backward_weight_seconds <= load.backward_seconds * (1 + 1e-9));
        (load.captured ? captured : host > device ? host_bound : device_bound) += 1;
      }
    }
  }
  CHECK(captured > 100);
  CHECK(host_bound > 100);
  CHECK(device_bound > 100);
}

TEST_CASE("Some of the states give stages the loads that all of them do") {
  std::mt19937 random(41);
  for (int c = 0; c < 200; ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 2, 8)), c % 2 == 0, 40);
    const Dataflow flow(profile);
    const States all = enumerate_states(flow, true);
    std::vector<int> numbers = {0};
    for (int i = 1; i < all.last(); ++i)
      if (pick(random, 0, 1) == 0) numbers.push_back(i);
    if (all.last() > 0) numbers.push_back(all.last());
    const States some = some_of(all, numbers);
    for (int i = 0; i < some.size(); ++i) {
      for (const int j : some.after(i)) {
        const int from = numbers[static_cast<size_t>(i)], to = numbers[static_cast<size_t>(j)];
        const StageLoad mine = load_between(some, i, j), theirs = load_between(all, from, to);
        CHECK(mine.saved_bytes == theirs.saved_bytes);
        CHECK(mine.held_bytes == theirs.held_bytes);
        CHECK(mine.out_bytes == theirs.out_bytes);
        CHECK(workspace_between(some, i, j).alone_bytes == workspace_between(all, from, to).alone_bytes);
        CHECK(workspace_between(some, i, j).with_gradients_bytes ==
              workspace_between(all, from, to).with_gradients_bytes);
      }
    }
  }
}

TEST_CASE("One order of the nodes where there are too many cuts") {
  // Sixteen branches of two nodes: 3^16 down-sets.
  Profile profile;
  profile.model = "wide";
  ProfiledNode first;
  first.name = "first";
  first.outputs = {{"first.out", 8}};
  first.forward_seconds = 1e-3;
  profile.nodes.push_back(first);
  ProfiledNode join;
  for (int b = 0; b < 16; ++b) {
    ProfiledNode a;
    a.name = "a" + std::to_string(b);
    a.inputs = {"first.out"};
    a.outputs = {{a.name + ".out", 100}};
    a.forward_seconds = 1e-3;
    profile.nodes.push_back(a);
  }
  for (int b = 0; b < 16; ++b) {
    ProfiledNode c;
    c.name = "c" + std::to_string(b);
    c.inputs = {"a" + std::to_string(b) + ".out"};
    c.outputs = {{c.name + ".out", 1}};
    c.forward_seconds = 1e-3;
    join.inputs.push_back(c.name + ".out");
    profile.nodes.push_back(c);
  }
  join.name = "join";
  join.outputs = {{"join.out", 1}};
  join.forward_seconds = 1e-3;
  profile.nodes.push_back(join);
  const Dataflow flow(profile);
  const States states = enumerate_states(flow, false);
  CHECK_FALSE(states.exact);
  REQUIRE(states.size() == 35);
  // Depth first: a branch is finished before the next is begun, so that no cut carries more than one
  // half-done branch.
  int64_t widest = 0;
  for (const State& state : states.states) {
    widest = std::max(widest, state.cut_bytes);
    CHECK(state.cut_bytes == live_bytes(flow, state.done));
  }
  CHECK(widest <= 8 + 100 + 16);
  for (int s = 1; s < states.size(); ++s) {
    CHECK(states.states[s].done.count() == static_cast<size_t>(s));
    CHECK(states.states[s - 1].done.is_subset_of(states.states[s].done));
  }
}

}  // namespace
}  // namespace pipewright

// Planning again in counted work: sound, never worse than the plan in force, near planning with all effort.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <optional>

#include "graph/document.h"
#include "graph/error.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/replan.h"
#include "optimizer/plan/row_seeds.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/long.h"

namespace pipewright::testing {
namespace {

PlanRequest planning_again(const Plan& in_force) {
  PlanRequest request;
  request.use_all_devices = true;
  request.schedule = in_force.schedule;
  request.weights = in_force.weights;
  if (weight_rule_facts(in_force.weights).one_update_for_all) request.microbatches = in_force.microbatches;
  return request;
}

struct World {
  Profile profile;
  Topology quiet;
  Topology slowed;
  std::vector<double> slowdowns;
  Plan in_force;  // of quiet devices
};

/// A chain or a DAG on two to eight devices of one or two levels, some of them slow, half of the worlds with
/// a memory limit that binds. Nothing where no plan is possible.
std::optional<World> random_world(unsigned seed, const std::string& schedule = "1f1b") {
  std::mt19937 random(seed);
  World world;
  world.profile = random_profile(random, 6 + static_cast<int>(seed % 9), seed % 3 != 0, 50);
  const bool levels = seed % 4 == 3;
  world.quiet = flat_topology(levels ? pick(random, 2, 3) : pick(random, 2, 6), 1e7, 20e-6, 0);
  if (levels) world.quiet.levels.push_back({2, 2e6, 50e-6, false});
  PlanRequest request;
  request.use_all_devices = true;
  request.schedule = schedule;
  try {
    world.in_force = make_plan(world.profile, world.quiet, request);
    if (seed % 2 == 0) {
      for (const StagePrediction& stage : world.in_force.predicted->stages)
        world.quiet.memory_bytes = std::max(world.quiet.memory_bytes, stage.memory.total_bytes() * 11 / 10);
      world.in_force = make_plan(world.profile, world.quiet, request);
    }
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
  world.slowed = world.quiet;
  for (int64_t rank = 0; rank < world.quiet.device_count(); ++rank) {
    world.slowdowns.push_back(pick(random, 0, 2) > 0 ? 1 : 1 + 0.5 * static_cast<double>(pick(random, 1, 6)));
    world.slowed.devices.push_back({"host", 1 / world.slowdowns.back(), 0});
  }
  return world;
}

Replanned sound_plan_again(const World& world, const std::vector<double>& slowdowns,
                           const Topology& topology) {
  const Replanned again = plan_again(world.profile, world.quiet, world.in_force, slowdowns);
  again.plan.validate("plan");
  const Prediction as_priced =
      evaluate_plan(again.plan, world.profile, topology, planning_again(world.in_force));
  CHECK(as_priced.minibatch_seconds == Approx(again.next_seconds).epsilon(1e-9));
  CHECK_NOTHROW(check_plan_memory(again.plan, as_priced, as_priced, topology));
  CHECK(again.plan.world_size == topology.device_count());
  CHECK(again.plan.microbatches == world.in_force.microbatches);
  CHECK(again.next_seconds <= kEquallyFast * again.now_seconds);
  return again;
}

/// A chain of nodes that differ.
Profile long_chain(int nodes, unsigned seed) {
  std::mt19937 random(seed);
  Profile profile = random_profile(random, nodes, true, 0);
  for (ProfiledNode& node : profile.nodes) {
    node.forward_seconds = node.backward_input_seconds = 1e-4 * static_cast<double>(pick(random, 5, 60));
    node.inputs.resize(1);
    node.parameters = {node.name + ".weight"};
    node.parameter_bytes = node.trainable_parameter_bytes = pick(random, 1, 20) * 100'000;
  }
  for (size_t v = 0; v < profile.nodes.size(); ++v)
    profile.nodes[v].inputs = {v == 0 ? "images" : profile.nodes[v - 1].outputs[0].name};
  return profile;
}

int64_t bytes_moved(const Profile& profile, const Plan& from, const Plan& to) {
  int64_t bytes = 0;
  for (const PlanMove& move : profiled_moves(profile, 1, from, to)) bytes += move.bytes;
  return bytes;
}

}  // namespace

TEST_CASE("planning again: sound, on all ranks, no slower than the plan in force, the same again") {
  int cases = 0;
  for (unsigned seed = 0; seed < (testing::is_long() ? 160U : 60U); ++seed) {
    const auto world = random_world(seed);
    if (!world) continue;
    ++cases;
    CAPTURE(seed, world->slowdowns);
    const Replanned again = sound_plan_again(*world, world->slowdowns, world->slowed);
    const Replanned same = sound_plan_again(*world, world->slowdowns, world->slowed);
    CHECK(document_digest(same.plan) == document_digest(again.plan));
    sound_plan_again(*world, std::vector<double>(world->slowdowns.size(), 1), world->quiet);
  }
  CHECK(cases > (testing::is_long() ? 120 : 45));
}

TEST_CASE("planning again: near those that are searched with all effort") {
  struct Kind {
    int cases = 0;
    double sum = 0, worst = 0;
    int beyond = 0;  // by more than 3 %
  };
  Kind chains, graphs, levels;
  const int tried = testing::is_long() ? 300 : 60;
  for (unsigned seed = 1000; seed < 1000U + static_cast<unsigned>(tried); ++seed) {
    const auto world = random_world(seed);
    if (!world) continue;
    const double quick =
        plan_again(world->profile, world->quiet, world->in_force, world->slowdowns).next_seconds;
    double searched = 0;
    try {
      searched = make_plan(world->profile, world->slowed, planning_again(world->in_force))
                     .predicted->minibatch_seconds;
    } catch (const InfeasibleError&) {
      continue;
    }
    Kind& kind = seed % 4 == 3 ? levels : seed % 3 == 0 ? graphs : chains;
    const double ratio = quick / searched;
    ++kind.cases;
    kind.sum += ratio;
    kind.worst = std::max(kind.worst, ratio);
    kind.beyond += ratio > 1.03 ? 1 : 0;
  }
  for (const Kind* each : {&chains, &graphs, &levels}) {
    const Kind& kind = *each;
    INFO(kind.cases << " cases, mean " << kind.sum / kind.cases << ", worst " << kind.worst << ", "
                    << kind.beyond << " more than 3 % slower");
    CHECK(kind.cases > tried / 6);
    CHECK(kind.sum / kind.cases < 1.002);
    CHECK(kind.worst < 1.05);
    CHECK(kind.beyond <= kind.cases / 50);
  }
}

TEST_CASE("planning again: sound of schedules that drain too") {
  for (const char* schedule : {"1f1b-flush", "gpipe", "zb-h1"}) {
    int cases = 0;
    for (unsigned seed = 2000; seed < (testing::is_long() ? 2030U : 2010U); ++seed) {
      const auto world = random_world(seed, schedule);
      if (!world) continue;
      ++cases;
      CAPTURE(schedule, seed);
      sound_plan_again(*world, world->slowdowns, world->slowed);
    }
    CHECK(cases > (testing::is_long() ? 15 : 5));
  }
}

TEST_CASE("along a row, a period is near the exact one") {
  double worst = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Profile profile = long_chain(100, seed);
    const Topology topology = flat_topology(8, 1e9, 20e-6, 0);
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, false);
    Problem problem;
    problem.states = &states;
    problem.inputs = cost_inputs(profile, topology, 1);
    problem.devices = 8;
    const double exact = search(problem)->period_seconds;
    RowSearch rows(problem);
    RowProblem asked;
    for (int64_t device = 0; device < 8; ++device) asked.order.push_back(device);
    asked.most_replicas = 8;
    const auto least = [&](CountedWork work) {
      double seconds = std::numeric_limits<double>::infinity();
      for (const Chain& chain : rows.chains(asked, &work)) {
        double slowest = 0;
        for (const FoundStage& stage : chain.stages) {
          CHECK(std::ssize(stage.ranks) >= asked.least_replicas);
          slowest = std::max(slowest, stage_period(load_between(states, stage.from, stage.to),
                                                   std::ssize(stage.ranks), problem.inputs)
                                          .total_seconds());
        }
        CHECK(slowest >= exact * (1 - 1e-9));
        seconds = std::min(seconds, slowest);
      }
      return seconds;
    };
    worst = std::max(worst, least(CountedWork(1)) / exact);
    CHECK(std::isinf(least(CountedWork(0))));
    asked.least_replicas = 4;
    CHECK(std::isfinite(least(CountedWork(1))));
  }
  CHECK(worst < 1.03);
}

TEST_CASE("planning again on many ranks: never worse than to stay, a uniform slowdown changes nothing") {
  for (const auto& [ranks, nodes] : std::vector<std::pair<int64_t, int>>{{12, 60}, {16, 120}, {32, 100}}) {
    const Profile profile = long_chain(nodes, 7);
    const Topology topology = flat_topology(ranks, 1e9, 20e-6, 0);
    PlanRequest request;
    request.use_all_devices = true;
    const Plan in_force = make_plan(profile, topology, request);
    const std::vector<double> quiet(static_cast<size_t>(ranks), 1);
    for (const double slowdown : {1.0, 3.0}) {
      const Replanned all =
          plan_again(profile, topology, in_force, std::vector<double>(quiet.size(), slowdown));
      CAPTURE(ranks, slowdown, all.now_seconds, all.next_seconds);
      CHECK(bytes_moved(profile, in_force, all.plan) == 0);
      CHECK(all.move_seconds == 0);
    }
    std::mt19937 random(static_cast<unsigned>(ranks));
    for (int i = 0; i < 4; ++i) {
      std::vector<double> slowdowns = quiet;
      for (int64_t slow = pick(random, 1, 3); slow > 0; --slow)
        slowdowns[static_cast<size_t>(pick(random, 0, ranks - 1))] = 1 + 0.5 * static_cast<double>(slow);
      SlowLinks links;
      if (i % 2 == 1) links = {{in_force.stages[0].ranks[0], in_force.stages[1].ranks[0], 20}};
      const Replanned again = plan_again(profile, topology, in_force, slowdowns, links);
      CAPTURE(ranks, i, again.now_seconds, again.next_seconds);
      CHECK(again.next_seconds <= kEquallyFast * again.now_seconds);
      CHECK(again.next_seconds < 0.9 * again.now_seconds);
      again.plan.validate("plan");
      const Replanned same = plan_again(profile, topology, in_force, slowdowns, links);
      CHECK(document_digest(same.plan) == document_digest(again.plan));
      // With no work at all: the plan in force, if with other shares.
      const Replanned stays = plan_again(profile, topology, in_force, slowdowns, {}, {}, 0);
      CHECK(bytes_moved(profile, in_force, stays.plan) == 0);
      CHECK(stays.next_seconds <= stays.now_seconds);
      // Quiet again, and the plan of then is known.
      const Replanned back = plan_again(profile, topology, again.plan, quiet, {}, {in_force}, 0);
      CHECK(back.next_seconds <= kEquallyFast * in_force.predicted->minibatch_seconds);
    }
  }
}

}  // namespace pipewright::testing

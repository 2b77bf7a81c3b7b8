// Planning again while a plan is in force: as fast as planning anew, and with as little to move as can be.
#include "optimizer/plan/replan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "graph/document.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/plan_sequence.h"
#include "optimizer/plan/renamed_ranks.h"
#include "optimizer/plan/updates.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright::testing {
namespace {

Topology links(int64_t ranks, const std::vector<double>& slowdowns = {}) {
  Topology topology = flat_topology(ranks, 1e9, 20e-6, 0);
  for (const double slowdown : slowdowns) topology.devices.push_back({"host", 1 / slowdown, 0});
  return topology;
}

PlanRequest on_all() {
  PlanRequest request;
  request.use_all_devices = true;
  return request;
}

int64_t moved_bytes(const Profile& profile, const Plan& from, const Plan& to) {
  int64_t bytes = 0;
  for (const PlanMove& move : profiled_moves(profile, on_all().optimizer_slots, from, to))
    bytes += move.bytes;
  return bytes;
}

Plan renamed(Plan plan, const std::vector<int64_t>& names) {
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = names[static_cast<size_t>(rank)];
  return plan;
}

struct Case {
  Profile profile;
  Plan in_force;  // of quiet ranks, renamed at random
  std::vector<double> slowdowns;
};

// Nothing where the model has no plan for so many ranks.
std::optional<Case> random_case(unsigned seed) {
  std::mt19937 random(seed);
  Case made;
  made.profile = random_profile(random, 4 + static_cast<int>(seed % 6), seed % 3 != 0, 60);
  const int64_t ranks = pick(random, 2, 4);
  try {
    made.in_force = make_plan(made.profile, links(ranks), on_all());
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
  std::vector<int64_t> names(static_cast<size_t>(ranks));
  std::iota(names.begin(), names.end(), int64_t{0});
  std::shuffle(names.begin(), names.end(), random);
  made.in_force = renamed(made.in_force, names);
  for (int64_t rank = 0; rank < ranks; ++rank)
    made.slowdowns.push_back(pick(random, 0, 1) == 0 ? 1 : 1 + 0.5 * static_cast<double>(pick(random, 1, 5)));
  return made;
}

// Twelve equal nodes with as much state each.
Profile chain() {
  Profile profile;
  profile.model = "chain";
  profile.device = "none";
  profile.minibatch_samples = 8;
  for (int v = 0; v < 12; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.inputs = {v == 0 ? "images" : "n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", 1000}};
    node.forward_seconds = node.backward_input_seconds = node.backward_weight_seconds = 0.001;
    node.parameter_bytes = node.trainable_parameter_bytes = 100'000'000;
    node.parameters = {node.name + ".weight"};
    profile.nodes.push_back(node);
  }
  return profile;
}

}  // namespace

TEST_CASE("the mirrored order of stages, as fast, is not taken where it moves more") {
  const Profile profile = chain();
  const Plan quiet = make_plan(profile, links(2), on_all());
  REQUIRE(quiet.stages.size() == 2);
  for (const std::vector<int64_t>& names : {std::vector<int64_t>{0, 1}, {1, 0}}) {
    const Plan in_force = renamed(quiet, names);
    for (const int64_t slow : {0, 1}) {
      std::vector<double> slowdowns = {1, 1};
      slowdowns[static_cast<size_t>(slow)] = 3;
      const Replanned again = plan_again(profile, links(2), in_force, slowdowns);
      CAPTURE(names, slow);
      // Three of the slow rank's six nodes, 100 MB of weights and of momentum each.
      CHECK(moved_bytes(profile, in_force, again.plan) == 3 * 200'000'000);
      CHECK(again.plan.stages[0].ranks == in_force.stages[0].ranks);
      // The same three back.
      const Replanned back = plan_again(profile, links(2), again.plan, {1, 1});
      CHECK(moved_bytes(profile, again.plan, back.plan) == 3 * 200'000'000);
      CHECK(back.plan.stages[0].nodes == in_force.stages[0].nodes);
    }
  }
}

TEST_CASE("who does not know why nodes are slow takes less from a slow rank than helps most") {
  const Profile profile = chain();
  const Plan quiet = make_plan(profile, links(2), on_all());
  const Replanned naive = plan_as_if_nodes_were_slow(profile, links(2), quiet, {1, 3});
  // Six nodes of 3 ms and six of 9 ms: 36 ms each.
  CHECK(naive.plan.stages[0].nodes.size() == 8);
  CHECK(naive.plan.stages[0].ranks == quiet.stages[0].ranks);
  CHECK(naive.now_seconds == Approx(0.054).epsilon(0.01));
  CHECK(naive.next_seconds == Approx(0.036).epsilon(0.01));
  CHECK(plan_again(profile, links(2), quiet, {1, 3}).next_seconds == Approx(0.027).epsilon(0.01));
  // Back when it is over; and nothing where all are slow.
  const Replanned back = plan_as_if_nodes_were_slow(profile, links(2), naive.plan, {1, 1});
  CHECK(back.plan.stages[0].nodes == quiet.stages[0].nodes);
  CHECK(plan_as_if_nodes_were_slow(profile, links(2), quiet, {3, 3}).move_seconds == 0);
}

TEST_CASE("planning again is as fast as planning anew, whatever ranks the stages have now") {
  int cases = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    const auto made = random_case(seed);
    if (!made) continue;
    ++cases;
    CAPTURE(seed, made->slowdowns);
    const auto& [profile, in_force, slowdowns] = *made;
    const int64_t ranks = in_force.world_size;
    const Replanned again = plan_again(profile, links(ranks), in_force, slowdowns);
    const auto [least, most] = std::minmax_element(slowdowns.begin(), slowdowns.end());
    const Topology devices = *most < 1.1 * *least ? links(ranks) : links(ranks, slowdowns);
    const double anew = make_plan(profile, devices, on_all()).predicted->minibatch_seconds;
    CHECK(again.next_seconds <= kEquallyFast * std::min(anew, again.now_seconds));
    CHECK(evaluate_plan(again.plan, profile, devices, on_all()).minibatch_seconds ==
          Approx(again.next_seconds).epsilon(1e-9));
    again.plan.validate("plan");
    // A plan that is as fast as the best stays.
    const Replanned once_more = plan_again(profile, links(ranks), again.plan, slowdowns);
    CHECK(once_more.next_seconds <= kEquallyFast * again.next_seconds);
    if (once_more.next_seconds * kEquallyFast > again.next_seconds)
      CHECK(moved_bytes(profile, again.plan, once_more.plan) == 0);
  }
  CHECK(cases > 100);
}

TEST_CASE("a rank that is slow at some of the work is given the rest of it") {
  const Profile profile = chain();
  const Plan quiet = make_plan(profile, links(2), on_all());
  REQUIRE(quiet.stages[1].ranks == std::vector<int64_t>{1});
  // Rank 1 has the second half, and computes just that half three times as long.
  Slowdowns slowdowns = {1, 3};
  slowdowns.nodes[1] = std::vector<double>(12, 1);
  std::fill(slowdowns.nodes[1].begin() + 6, slowdowns.nodes[1].end(), 3);
  const Replanned again = plan_again(profile, links(2), quiet, slowdowns);
  CHECK(again.slowdowns == slowdowns);
  CHECK(again.now_seconds == Approx(0.054).epsilon(0.01));
  CHECK(again.next_seconds == Approx(0.018).epsilon(0.01));
  CHECK(again.plan.stages[0].ranks == std::vector<int64_t>{1});
  CHECK(again.plan.stages[0].nodes == quiet.stages[0].nodes);
  // Who is told of the rank alone gives it three nodes.
  CHECK(plan_again(profile, links(2), quiet, {1, 3}).next_seconds == Approx(0.027).epsilon(0.01));
}

TEST_CASE("slowdowns node by node: all alike are those of the rank, and others are priced node by node") {
  int cases = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const auto made = random_case(seed);
    if (!made) continue;
    ++cases;
    CAPTURE(seed, made->slowdowns);
    const auto& [profile, in_force, of_ranks] = *made;
    const size_t nodes = profile.nodes.size();
    const int64_t ranks = in_force.world_size;
    std::mt19937 random(seed);
    Slowdowns alike = of_ranks, uneven = of_ranks;
    Topology devices = links(ranks, of_ranks);
    PlanRequest request = on_all();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const double slowdown = of_ranks[static_cast<size_t>(rank)];
      if (slowdown == 1) continue;
      alike.nodes[rank] = std::vector<double>(nodes, slowdown);
      Profile measured = profile;  // on a device of its own kind
      for (ProfiledNode& node : measured.nodes) {
        uneven.nodes[rank].push_back(1 + 0.25 * static_cast<double>(pick(random, 0, 12)));
        node.forward_seconds *= uneven.nodes[rank].back();
        node.backward_input_seconds *= uneven.nodes[rank].back();
        node.backward_weight_seconds *= uneven.nodes[rank].back();
      }
      TopologyDevice& device = devices.devices[static_cast<size_t>(rank)];
      device.relative_speed = 1;
      device.device_class = std::to_string(rank);
      request.class_profiles.emplace(device.device_class, measured);
    }
    if (alike.nodes.empty()) continue;
    if (!std::equal(of_ranks.begin(), of_ranks.end() - 1, of_ranks.begin() + 1)) {
      const Replanned by_rank = plan_again(profile, links(ranks), in_force, of_ranks);
      const Replanned by_node = plan_again(profile, links(ranks), in_force, alike);
      CHECK(by_node.now_seconds == Approx(by_rank.now_seconds).epsilon(1e-9));
      CHECK(by_node.next_seconds == Approx(by_rank.next_seconds).epsilon(1e-3));
    }
    const Replanned again = plan_again(profile, links(ranks), in_force, uneven);
    again.plan.validate("plan");
    CHECK(again.next_seconds <= again.now_seconds);
    // Updates are priced by the rank's own slowdown, so that of a stage with a slow rank is not less than
    // here.
    CHECK(again.next_seconds >=
          evaluate_plan(again.plan, profile, devices, request).minibatch_seconds * (1 - 1e-9));
  }
  CHECK(cases > 40);
}

TEST_CASE("with a limit for updates no stage makes one of more minibatches, and no such plan is faster") {
  int straight_cases = 0;
  for (unsigned seed = 0; seed < 120; ++seed) {
    const auto made = random_case(seed);
    if (!made) continue;
    const Profile& profile = made->profile;
    const int64_t ranks = made->in_force.world_size;
    std::vector<double> slow = made->slowdowns;
    slow[0] = 2.5;
    const auto planned_again = [&](const Plan& in_force, int64_t most) {
      CAPTURE(seed, slow, most, in_force.shape_text());
      Replanned again =
          plan_again(profile, links(ranks), in_force, slow, {}, {in_force}, kReplanSeconds, most);
      again.plan.validate("plan");
      CHECK(updates_of(again.plan).most_minibatches <= most);
      CHECK(again.next_seconds <= again.now_seconds);
      return again;
    };
    const int64_t first = updates_of(made->in_force).most_minibatches;
    planned_again(made->in_force, first);
    planned_again(made->in_force, first + 1);
    // With one minibatch an update it is a straight pipeline's problem.
    PlanRequest straight = on_all();
    straight.strategy = "straight";
    std::optional<Plan> quiet;
    try {
      quiet = make_plan(profile, links(ranks), straight);
    } catch (const InfeasibleError&) {
      continue;  // there are not so many stages
    }
    if (quiet->world_size < ranks) continue;
    const Replanned again = planned_again(*quiet, 1);
    const double best = make_plan(profile, links(ranks, slow), straight).predicted->minibatch_seconds;
    CAPTURE(seed, slow);
    CHECK(again.next_seconds <= kEquallyFast * best);
    ++straight_cases;
  }
  CHECK(straight_cases > 10);
}

TEST_CASE("a plan of one minibatch at a time stays one: a slow rank gets less of it") {
  const Profile profile = chain();
  PlanRequest request = on_all();
  request.strategy = "model-parallel";
  const Plan quiet = make_plan(profile, links(2), request);
  REQUIRE(quiet.schedule == "model-parallel");
  const Replanned again = plan_again(profile, links(2), quiet, std::vector<double>{1, 4}, {}, {quiet});
  CHECK(again.plan.schedule == "model-parallel");
  CHECK(again.next_seconds <= again.now_seconds);
}

TEST_CASE("no plan as fast whose ranks are others moves fewer bytes") {
  int cases = 0;
  for (unsigned seed = 1000; seed < 1150; ++seed) {
    const auto made = random_case(seed);
    if (!made) continue;
    ++cases;
    const auto& [profile, in_force, slowdowns] = *made;
    const int64_t ranks = in_force.world_size;
    const Topology devices = links(ranks, slowdowns);
    const Plan next = make_plan(profile, devices, on_all());
    const Plan best = renamed_for_fewest_moves(in_force, next, profile, cost_inputs(profile, devices, 1));
    CAPTURE(seed, slowdowns);
    CHECK(evaluate_plan(best, profile, devices, on_all()).minibatch_seconds ==
          Approx(next.predicted->minibatch_seconds).epsilon(1e-9));
    // Every way to rename ranks that are as fast.
    std::vector<int64_t> names(static_cast<size_t>(ranks));
    std::iota(names.begin(), names.end(), int64_t{0});
    int64_t fewest = moved_bytes(profile, in_force, next);
    do {
      bool alike = true;
      for (size_t rank = 0; rank < names.size(); ++rank)
        alike = alike && slowdowns[rank] == slowdowns[static_cast<size_t>(names[rank])];
      if (alike) fewest = std::min(fewest, moved_bytes(profile, in_force, renamed(next, names)));
    } while (std::next_permutation(names.begin(), names.end()));
    CHECK(moved_bytes(profile, in_force, best) == fewest);
  }
  CHECK(cases > 100);
}

TEST_CASE("with links on several levels ranks keep their places") {
  Topology hosts = flat_topology(2, 1e9, 20e-6, 0);
  hosts.levels.push_back({2, 1e8, 50e-6, false});
  const Profile profile = chain();
  const Plan quiet = make_plan(profile, hosts, on_all());
  const Replanned again = plan_again(profile, hosts, quiet, {1, 1, 1, 2});
  CHECK(again.next_seconds <= again.now_seconds);
  again.plan.validate("plan");
}

}  // namespace pipewright::testing

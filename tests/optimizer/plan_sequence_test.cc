// Runs whose plan changes, priced: against the plans by themselves, and moves against what ranks need.
#include "optimizer/plan/plan_sequence.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "graph/error.h"
#include "graph/plan_moves.h"
#include "optimizer/plan/evaluate.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

using testing::pick;
using testing::random_profile;

const std::vector<std::string> kStrategies = {"auto", "dp", "straight", "hybrid"};

// Plans of one profile for up to six ranks; fewer than asked where a strategy has none.
std::vector<Plan> random_plans(std::mt19937& random, const Profile& profile, int count) {
  std::vector<Plan> plans;
  for (int i = 0; i < count; ++i) {
    PlanRequest request;
    request.strategy = kStrategies[static_cast<size_t>(pick(random, 0, 3))];
    try {
      plans.push_back(make_plan(profile, flat_topology(pick(random, 1, 6), 1e6, 1e-4, 0), request));
    } catch (const Error&) {
      continue;
    }
  }
  return plans;
}

std::map<int64_t, std::set<std::string>> held(const Plan& plan) {
  std::map<int64_t, std::set<std::string>> held;
  for (const Stage& stage : plan.stages)
    for (const int64_t rank : stage.ranks) held[rank].insert(stage.nodes.begin(), stage.nodes.end());
  return held;
}

}  // namespace

TEST_CASE("moves bring every rank what it lacks, once, from one that has it, and nothing else") {
  std::mt19937 random(5);
  int64_t changes = 0;
  for (int round = 0; round < 200; ++round) {
    Profile profile = random_profile(random, static_cast<int>(pick(random, 2, 9)), true, 40);
    for (ProfiledNode& node : profile.nodes) node.buffer_bytes += 8;  // everything weighs something
    const auto plans = random_plans(random, profile, 4);
    const int64_t slots = pick(random, 0, 2);
    std::map<std::string, int64_t> bytes;
    for (const ProfiledNode& node : profile.nodes)
      bytes[node.name] = node.parameter_bytes + slots * node.trainable_parameter_bytes + node.buffer_bytes;
    for (size_t i = 1; i < plans.size(); ++i) {
      const auto before = held(plans[i - 1]);
      auto now = before;
      std::pair<int64_t, int64_t> last{-1, -1};
      for (const PlanMove& move : profiled_moves(profile, slots, plans[i - 1], plans[i])) {
        CHECK(last < std::pair(move.from, move.to));
        last = {move.from, move.to};
        int64_t sum = 0;
        for (const std::string& name : move.names) {
          CHECK(before.at(move.from).count(name) == 1);
          CHECK(now[move.to].insert(name).second);
          sum += bytes.at(name);
        }
        CHECK(move.bytes == sum);
      }
      for (const auto& [rank, names] : held(plans[i])) {
        for (const std::string& name : names) CHECK(now[rank].count(name) == 1);
        size_t lacked = 0;
        for (const std::string& name : names)
          lacked += before.count(rank) == 0 || before.at(rank).count(name) == 0;
        const size_t had = before.count(rank) == 0 ? 0 : before.at(rank).size();
        CHECK(now[rank].size() == had + lacked);
      }
      ++changes;
    }
  }
  CHECK(changes > 300);
}

TEST_CASE("a sequence costs what its plans cost and its moves, and the same plan again moves nothing") {
  std::mt19937 random(6);
  for (int round = 0; round < 60; ++round) {
    const Profile profile = random_profile(random, static_cast<int>(pick(random, 2, 7)), true, 40);
    const Topology topology = flat_topology(6, 1e6, 1e-4, 0);
    const PlanRequest request;
    const auto plans = random_plans(random, profile, 3);
    if (plans.empty()) continue;
    std::vector<std::string> names;
    std::vector<int64_t> firsts;
    for (size_t i = 0; i < plans.size(); ++i) {
      names.push_back("plan " + std::to_string(i));
      firsts.push_back(i == 0 ? 0 : firsts.back() + pick(random, 1, 900));
    }
    const int64_t minibatches = firsts.back() + pick(random, 1, 900);
    const auto priced = price_generations(plans, names, firsts, minibatches, profile, topology, request);
    REQUIRE(priced.size() == plans.size());
    int64_t sum = 0;
    for (size_t i = 0; i < plans.size(); ++i) {
      sum += priced[i].minibatches;
      const auto alone =
          price_generations({plans[i]}, {"alone"}, {0}, priced[i].minibatches, profile, topology, request);
      CHECK(alone[0].seconds == priced[i].seconds);
      CHECK(alone[0].moved_bytes == 0);
      const Prediction prediction = evaluate_plan(plans[i], profile, topology, request);
      CHECK(priced[i].plan.predicted->minibatch_seconds == prediction.minibatch_seconds);
      CHECK(priced[i].seconds >= prediction.minibatch_seconds * (1 - 1e-9));
      CHECK((priced[i].move_seconds > 0) == (priced[i].moved_bytes > 0));
    }
    CHECK(sum == minibatches);
    const auto again =
        price_generations({plans[0], plans[0]}, {"a", "a"}, {0, 50}, 100, profile, topology, request);
    CHECK(again[1].moved_bytes == 0);
    CHECK(again[1].move_seconds == 0);
    // Behind the end nothing comes.
    CHECK(price_generations(plans, names, firsts, 1, profile, topology, request).size() == 1);
  }
}

TEST_CASE("the busiest rank's messages come one after the other") {
  // Rank 0 sends 3 and 4 units, rank 2 gets 4 and 2.
  const std::vector<PlanMove> moves = {{0, 1, {}, 3}, {0, 2, {}, 4}, {3, 2, {}, 2}};
  const auto seconds = [](const PlanMove& move) { return static_cast<double>(move.bytes); };
  CHECK(busiest_seconds(moves, seconds) == 7);
  CHECK(busiest_seconds({}, seconds) == 0);
}

}  // namespace pipewright

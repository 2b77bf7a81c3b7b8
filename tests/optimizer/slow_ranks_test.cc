// Invariant I of planning again for slow ranks. (That the search equals brute force: search_test.cc.)
#include <algorithm>
#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "optimizer/plan/replan.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright::testing {
namespace {

PlanRequest all_devices() {
  PlanRequest request;
  request.use_all_devices = true;
  return request;
}

Topology alike_devices(int64_t ranks) { return flat_topology(ranks, 1e9, 20e-6, 0); }

// Of a quiet device, for a minibatch, of all stages of the rank: its part of the work.
double work_of(const Profile& profile, const Plan& plan, int64_t rank) {
  double seconds = 0;
  for (const Stage& stage : plan.stages) {
    const auto at = std::find(stage.ranks.begin(), stage.ranks.end(), rank);
    if (at == stage.ranks.end()) continue;
    double part = 1 / static_cast<double>(stage.ranks.size());
    if (!stage.shares.empty()) {
      int64_t sum = 0;
      for (const int64_t share : stage.shares) sum += share;
      part = static_cast<double>(stage.shares[static_cast<size_t>(at - stage.ranks.begin())]) /
             static_cast<double>(sum);
    }
    for (const ProfiledNode& node : profile.nodes)
      if (std::find(stage.nodes.begin(), stage.nodes.end(), node.name) != stage.nodes.end())
        seconds += part * node.compute_seconds();
  }
  return seconds;
}

// Plans for a random model, quiet; nothing where it has none.
std::optional<std::pair<Profile, Plan>> random_plan(unsigned seed, int64_t ranks) {
  std::mt19937 random(seed);
  const Profile profile = random_profile(random, 5 + static_cast<int>(seed % 4), true, 50);
  try {
    return std::pair(profile, make_plan(profile, alike_devices(ranks), all_devices()));
  } catch (const InfeasibleError&) {
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("slow ranks, invariant I: a slowdown of all ranks alike leaves the plan as it is") {
  int cases = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const int64_t ranks = 2 + static_cast<int64_t>(seed % 3);
    const auto made = random_plan(seed, ranks);
    if (!made) continue;
    ++cases;
    const auto& [profile, quiet] = *made;
    for (const double slowdown : {1.5, 3.0, 10.0}) {
      CAPTURE(seed, slowdown);
      const std::vector<double> all(static_cast<size_t>(ranks), slowdown);
      const Replanned again = plan_again(profile, alike_devices(ranks), quiet, all);
      CHECK(again.move_seconds == 0);
      for (size_t s = 0; s < quiet.stages.size(); ++s) {
        REQUIRE(again.plan.stages.size() == quiet.stages.size());
        CHECK(again.plan.stages[s].nodes == quiet.stages[s].nodes);
        CHECK(again.plan.stages[s].ranks == quiet.stages[s].ranks);
      }
    }
  }
  CHECK(cases > 40);
}

TEST_CASE("slow ranks, invariant I: a rank that becomes slower never gets more work") {
  int cases = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    const int64_t ranks = 2 + static_cast<int64_t>(seed % 2);
    const auto made = random_plan(seed, ranks);
    if (!made) continue;
    ++cases;
    const auto& [profile, quiet] = *made;
    const int64_t slow = static_cast<int64_t>(seed) % ranks;
    double before = work_of(profile, quiet, slow);
    // One node is the least that can move, and plans that differ by 0.5 % are equally fast.
    for (const double slowdown : {1.5, 2.0, 3.0, 5.0}) {
      std::vector<double> slowdowns(static_cast<size_t>(ranks), 1);
      slowdowns[static_cast<size_t>(slow)] = slowdown;
      const Replanned again = plan_again(profile, alike_devices(ranks), quiet, slowdowns);
      const double now = work_of(profile, again.plan, slow);
      CAPTURE(seed, slow, slowdown, before, now);
      CHECK(now <= before + 0.01 * profile.compute_seconds());
      before = now;
    }
  }
  CHECK(cases > 25);
}

}  // namespace pipewright::testing

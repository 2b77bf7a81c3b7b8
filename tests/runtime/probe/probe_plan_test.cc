#include "runtime/probe/probe_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "graph/random.h"

using namespace pipewright;

namespace {

// Nobody sends to two, or receives from two, or both.
bool are_disjoint(const std::vector<Flow>& flows) {
  std::set<int64_t> ranks;
  for (const Flow& flow : flows)
    if (!ranks.insert(flow.from).second || !ranks.insert(flow.to).second) return false;
  return true;
}

}  // namespace

TEST_CASE("probe: two hosts of four ranks try pairs within one, and all with all") {
  const ProbePlan plan = probe_plan({"a", "a", "a", "a", "b", "b", "b", "b"});
  CHECK(plan.links.size() == 28);
  CHECK((plan.pairs == std::vector<Flow>{{0, 1}, {0, 4}}));
  REQUIRE(plan.crowds.size() == 2);
  CHECK(plan.crowds[0].kind == Crowd::Kind::kPairsOfAHost);
  CHECK((plan.crowds[0].together == std::vector<Flow>{{0, 1}, {2, 3}}));
  CHECK(plan.crowds[1].kind == Crowd::Kind::kRanksOfTwoHosts);
  CHECK((plan.crowds[1].alone == std::vector<Flow>{{0, 4}}));
  CHECK((plan.crowds[1].together == std::vector<Flow>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  CHECK(plan.groups == std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {0, 4}});
}

TEST_CASE("probe: four hosts of one rank try two pairs of hosts") {
  const ProbePlan plan = probe_plan({"a", "b", "c", "d"});
  CHECK((plan.pairs == std::vector<Flow>{{0, 1}}));
  REQUIRE(plan.crowds.size() == 1);
  CHECK(plan.crowds[0].kind == Crowd::Kind::kPairsOfHosts);
  CHECK((plan.crowds[0].alone == std::vector<Flow>{{0, 1}}));
  CHECK((plan.crowds[0].together == std::vector<Flow>{{0, 1}, {2, 3}}));
}

TEST_CASE("probe: two ranks have a core each, or one for both") {
  const RankFacts first{"a", "m", {0}, 1}, second{"b", "m", {0}, 1}, third{"a", "m", {1}, 1};
  CHECK_FALSE(have_a_core_each(first, second));
  CHECK(have_a_core_each(first, third));
  CHECK(have_a_core_each({"a", "m", {0, 1}, 2}, {"a", "m", {0, 1}, 2}));
  CHECK(have_a_core_each(first, {"b", "other", {0}, 1}));
}

TEST_CASE("probe: hosts of more ranks than are probed pair by pair have a link between them all the same") {
  std::vector<std::string> hosts(20, "a");
  hosts.insert(hosts.end(), 20, "b");
  const ProbePlan plan = probe_plan(hosts);
  CHECK((plan.pairs.back() == Flow{0, 20}));
  CHECK(plan.links.size() == 16 * 15 / 2 + 1);
  CHECK((plan.links.back() == Flow{0, 20}));
}

TEST_CASE("probe: of 2000 random worlds, pairs are of their levels, and what is at once is disjoint") {
  KeyedRandom random({1});
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::string> hosts;
    const uint64_t per_host = random.below(2) == 0 ? 1 + random.below(9) : 0;
    for (uint64_t rank = 0, ranks = 2 + random.below(30); rank < ranks; ++rank)
      hosts.push_back("h" + std::to_string(per_host > 0 ? rank / per_host : random.below(5)));
    const auto host = [&](int64_t rank) { return hosts.at(static_cast<size_t>(rank)); };
    const HostLayout layout = layout_of(hosts);
    const ProbePlan plan = probe_plan(hosts);

    CHECK(std::set(plan.links.begin(), plan.links.end()).size() == plan.links.size());
    for (const Flow& pair : plan.pairs) CHECK(std::count(plan.links.begin(), plan.links.end(), pair) == 1);
    const size_t most =
        std::max_element(layout.ranks.begin(), layout.ranks.end(), [](const auto& a, const auto& b) {
          return a.size() < b.size();
        })->size();
    CHECK(plan.pairs.size() == (most > 1 ? 1U : 0U) + (layout.names.size() > 1 ? 1U : 0U));
    if (layout.names.size() > 1) CHECK(host(plan.pairs.back().from) != host(plan.pairs.back().to));
    if (!layout.even) CHECK(plan.crowds.empty());
    for (const Crowd& crowd : plan.crowds) {
      CHECK(are_disjoint(crowd.together));
      CHECK(crowd.links > 1);
      CHECK(crowd.together.size() == crowd.alone.size() * static_cast<size_t>(crowd.links));
      for (const Flow& flow : crowd.alone)
        CHECK(std::count(crowd.together.begin(), crowd.together.end(), flow) == 1);
      for (const Flow& flow : crowd.together)
        CHECK((host(flow.from) == host(flow.to)) == (crowd.kind == Crowd::Kind::kPairsOfAHost));
    }
    for (const auto& ranks : plan.groups) {
      CHECK(ranks.size() > 1);
      CHECK(ranks.size() <= static_cast<size_t>(kMostProbedRanks));
    }
  }
}

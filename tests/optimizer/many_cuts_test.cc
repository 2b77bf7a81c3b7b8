// Models with more cuts than can be tried: contraction, down-sets, orders, bounds, and the search built on
// them.
#include <catch2/catch.hpp>
#include <ctime>
#include <set>

#include "graph/json.h"
#include "graph/pipedream.h"
#include "optimizer/cuts/down_sets.h"
#include "optimizer/cuts/orders.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/bound.h"
#include "optimizer/search/widen.h"
#include "tests/optimizer/nasnet_like.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;

std::vector<NodePair> random_edges(std::mt19937& random, int nodes, int percent) {
  std::vector<NodePair> edges;
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b) {
      if (pick(random, 1, 100) <= percent) edges.emplace_back(a, b);
    }
  }
  return edges;
}

bool is_down_set(unsigned set, const std::vector<NodePair>& edges) {
  return std::all_of(edges.begin(), edges.end(), [set](const NodePair& edge) {
    return (set >> edge.second & 1) == 0 || (set >> edge.first & 1) == 1;
  });
}

TEST_CASE("Contraction: groups hold what is together and what lies between, and make a DAG") {
  std::mt19937 random(1);
  for (int c = 0; c < 500; ++c) {
    const int nodes = static_cast<int>(pick(random, 1, 8));
    const std::vector<NodePair> edges = random_edges(random, nodes, 40);
    std::vector<NodePair> together;
    if (nodes > 1 && c % 2 == 0) {
      const int a = static_cast<int>(pick(random, 0, nodes - 2));
      together.emplace_back(a, static_cast<int>(pick(random, a + 1, nodes - 1)));
    }
    const Contraction graph = contract(nodes, edges, together);
    for (const auto& [a, b] : together) CHECK(graph.group_of[a] == graph.group_of[b]);
    for (const auto& [a, b] : edges) CHECK(graph.group_of[a] <= graph.group_of[b]);
    for (int g = 0; g < graph.size(); ++g) {
      for (const int v : graph.members[g]) CHECK(graph.group_of[v] == g);
      for (const int p : graph.previous[g]) CHECK(p < g);
    }
    // Its down-sets are those of the nodes that do not separate what is together, each once.
    std::set<unsigned> expected;
    for (unsigned set = 0; set < 1U << nodes; ++set) {
      const auto apart = [set](const NodePair& pair) {
        return (set >> pair.first & 1) != (set >> pair.second & 1);
      };
      if (is_down_set(set, edges) && std::none_of(together.begin(), together.end(), apart))
        expected.insert(set);
    }
    const std::optional<DownSets> sets = all_down_sets(graph, 1000);
    REQUIRE(sets.has_value());
    std::set<unsigned> found;
    for (int i = 0; i < sets->size(); ++i) {
      found.insert(static_cast<unsigned>(nodes_of(graph, sets->as_bits(i, graph.size())).to_ulong()));
    }
    CHECK(found == expected);
    CHECK(sets->size() == static_cast<int>(expected.size()));
    if (sets->size() > 1) CHECK_FALSE(all_down_sets(graph, sets->size() - 1).has_value());
    for (const uint32_t seed : {0U, 1U, 2U}) {
      const std::vector<NodeSet> cuts = cuts_along(graph, order_of_groups(graph, seed));
      CHECK(cuts.size() == static_cast<size_t>(graph.size()) + 1);
      for (const NodeSet& cut : cuts) CHECK(expected.count(static_cast<unsigned>(cut.to_ulong())) == 1);
    }
  }
}

TEST_CASE("Bounds hold, and the wide search lies between bound and optimum") {
  std::mt19937 random(2);
  int optimal = 0;
  int tight = 0;
  constexpr int kCases = 30;
  for (int c = 0; c < kCases; ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 4, 12)), false, 25);
    const Dataflow flow(profile);
    const States all = enumerate_states(flow, false);
    if (!all.exact) continue;
    Problem q;
    q.states = &all;
    q.inputs.bandwidth_bytes_per_second = std::vector<double>{1e5, 1e6, 1e7}[c % 3];
    q.inputs.latency_seconds = c % 2 == 0 ? 0 : 1e-4;
    q.devices = pick(random, 2, 6);
    if (c % 5 == 0) q.most_replicas = 1;
    const std::optional<Solution> best = search(q);
    REQUIRE(best.has_value());
    const double period = best->period_seconds;
    INFO("case " << c << ", period " << period);
    const Contraction graph = contract(flow, false);
    const Bounds of_listed(flow, graph, q);
    const Bounds of_cells_around(flow, graph, q, 1);
    for (const double achieved : {period, period * 1.3}) {
      const double listed = of_listed.of(achieved).period_seconds;
      const double around = of_cells_around.of(achieved).period_seconds;
      CHECK(listed <= period * (1 + 1e-9));
      CHECK(around <= period * (1 + 1e-9));
      tight += achieved == period && listed >= 0.99 * period;
    }
    const WideSolution wide = search_widely(flow, q, enumerate_states(flow, false, 1), false, false);
    REQUIRE(wide.solution.has_value());
    CHECK(wide.solution->period_seconds >= period * (1 - 1e-9));
    CHECK(wide.bound_seconds <= period * (1 + 1e-9));
    optimal += wide.solution->period_seconds <= period * (1 + 1e-9);
  }
  CHECK(optimal > kCases * 9 / 10);
  CHECK(tight > kCases / 3);
}

/// Plan, with what it took.
struct Timed {
  Plan plan;
  double cpu_seconds = 0;
  double gap() const { return plan.predicted->minibatch_seconds / plan.predicted->lower_bound_seconds - 1; }
};

Timed timed_plan(const Profile& profile, int64_t devices, double bandwidth) {
  const clock_t begin = clock();
  Timed timed;
  timed.plan = make_plan(profile, flat_topology(devices, bandwidth, 50e-6, 0), PlanRequest());
  timed.cpu_seconds = static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;
  WARN(profile.model << " on " << devices << ": " << timed.plan.shape_text() << ", "
                     << timed.plan.predicted->minibatch_seconds << " s by "
                     << timed.plan.predicted->bottleneck << ", bound "
                     << timed.plan.predicted->lower_bound_seconds << " s, gap " << 100 * timed.gap() << " %, "
                     << timed.cpu_seconds << " CPU s");
  return timed;
}

TEST_CASE("Inception-v3: within a percent of the bound") {
  const std::string file = testing::shared_data() / "pipedream_profiles" / "inception_v3.txt";
  if (!std::filesystem::exists(file)) return testing::skip("no " + file);
  const Profile profile = parse_pipedream_profile(read_file(file), file);
  const Dataflow flow(profile);
  const Contraction graph = contract(flow, false);
  CHECK_FALSE(all_down_sets(graph, 30000).has_value());
  for (const int64_t devices : {4, 8, 16}) {
    const Timed timed = timed_plan(profile, devices, 1.25e9);
    CHECK(timed.gap() < 0.01);
    CHECK(timed.cpu_seconds < 15);  // 5 on a machine with nothing else to do
  }
}

TEST_CASE("A graph like NASNet: within a percent of the bound") {
  const Profile profile = testing::nasnet_like(6, 1);
  profile.validate("nasnet-like");
  const Dataflow flow(profile);
  const Contraction graph = contract(flow, false);
  CHECK_FALSE(all_down_sets(graph, 1000000).has_value());
  for (const int64_t devices : {4, 8, 16}) {
    const Timed timed = timed_plan(profile, devices, 10e9);
    CHECK(timed.gap() < 0.01);
    CHECK(timed.cpu_seconds < 15);
  }
}

}  // namespace
}  // namespace pipewright

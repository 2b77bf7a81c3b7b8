// Devices on levels of links and devices that differ: shares, and inference against every placement there is,
// priced rank by rank.
#include "optimizer/cost/levels.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <numeric>

#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cuts/states.h"
#include "optimizer/plan/inference_plan.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

using testing::pick;

/// Every chain of stages on consecutive devices, forward only, one by one.
class AllPlacements {
 public:
  AllPlacements(const Problem& q, double period_seconds) : q_(q), most_period_(period_seconds * (1 + 1e-9)) {}

  double least_latency() {
    walk(q_.states->last(), 0);
    if (q_.inputs.devices_differ()) {
      turned_ = true;
      walk(q_.states->last(), 0);
    }
    return best_;
  }

 private:
  struct Piece {
    int from, to;
    std::vector<int64_t> ranks;
  };

  bool fits(int i, int j, const std::vector<int64_t>& ranks) const {
    StageLoad load = load_between(*q_.states, i, j);
    load.workspace = workspace_between(*q_.states, i, j);
    const int64_t memory = memory_limit_bytes(q_.inputs, q_.memory_bytes, ranks);
    return memory == 0 || inference_memory_bytes(load) <= memory;
  }

  void walk(int j, int64_t used) {
    if (j == 0) return price(used);
    for (int i = 0; i < j; ++i) {
      if (!q_.states->states[i].done.is_subset_of(q_.states->states[j].done)) continue;
      for (int64_t m = 1; used + m <= q_.devices; ++m) {
        std::vector<int64_t> ranks;
        for (int64_t p = used; p < used + m; ++p) ranks.push_back(turned_ ? q_.devices - 1 - p : p);
        if (!fits(i, j, ranks)) continue;
        pieces_.push_back({i, j, ranks});
        walk(i, used + m);
        pieces_.pop_back();
      }
    }
  }

  void price(int64_t used) {
    if (turned_ && used != q_.devices) return;  // devices that stay idle are the last ones
    std::vector<StageLoad> loads;
    std::vector<Stage> stages;
    for (size_t p = pieces_.size(); p-- > 0;) {
      loads.push_back(load_between(*q_.states, pieces_[p].from, pieces_[p].to));
      Stage& stage = stages.emplace_back();
      stage.ranks = pieces_[p].ranks;
      if (q_.inputs.speeds.empty()) continue;
      std::vector<double> seconds;
      for (const int64_t rank : stage.ranks)
        seconds.push_back(compute_seconds_on(loads.back(), q_.inputs, rank));
      stage.shares = best_shares(seconds);
    }
    const PlacedPrice price = price_placed(loads, stages, q_.inputs);
    if (price.total_seconds() <= most_period_) best_ = std::min(best_, price.latency_seconds());
  }

  const Problem& q_;
  const double most_period_;
  bool turned_ = false;
  std::vector<Piece> pieces_;
  double best_ = 1e300;
};

Topology random_levels(std::mt19937& random) {
  Topology topology;
  const int64_t shapes[][3] = {{2, 2, 1}, {2, 3, 1}, {3, 2, 1}, {4, 1, 1},
                               {2, 2, 2}, {6, 1, 1}, {1, 4, 1}, {4, 2, 1}};
  const auto& shape = shapes[pick(random, 0, 7)];
  double bandwidth = 1e8;
  for (int l = 0; l < (shape[2] > 1 ? 3 : 2); ++l) {
    const double slower[] = {1, 3, 10, 100};
    bandwidth /= slower[pick(random, 0, 3)];
    topology.levels.push_back({shape[l], bandwidth, pick(random, 0, 1) * 2e-4, pick(random, 0, 3) == 0});
  }
  return topology;
}

int64_t cases(int64_t usual) {
  const char* text = std::getenv("PIPEWRIGHT_SEARCH_CASES");
  return text != nullptr ? std::atoll(text) : usual;
}

/// Up to two devices of other speed or memory.
void make_different(std::mt19937& random, Topology* topology) {
  const double speeds[] = {1, 2, 0.5, 1.5};
  const double first = speeds[pick(random, 0, 3)];
  const double second = speeds[pick(random, 0, 3)];
  const int64_t border = pick(random, 0, topology->device_count());
  for (int64_t d = 0; d < topology->device_count(); ++d) {
    topology->devices.push_back(
        {"host", d < border ? first : second, d < border ? 0 : pick(random, 0, 1) * 40000});
  }
}

TEST_CASE(
    "Shares compute a minibatch in the least time there is, in the shortest round, equal replicas get one "
    "each") {
  std::mt19937 random(8);
  for (int round = 0; round < 300; ++round) {
    const auto replicas = static_cast<size_t>(pick(random, 1, 3));
    std::vector<double> seconds(replicas, 1);
    for (size_t q = 1; q < replicas; ++q)
      seconds[q] = round % 4 == 0 ? 1 : 0.2 * static_cast<double>(pick(random, 1, 20));
    const auto pace = [&](const std::vector<int64_t>& shares) {
      double slowest = 0;
      for (size_t q = 0; q < replicas; ++q)
        slowest = std::max(slowest, seconds[q] * static_cast<double>(shares[q]));
      return slowest / static_cast<double>(std::accumulate(shares.begin(), shares.end(), int64_t{0}));
    };
    const std::vector<int64_t> best = best_shares(seconds);
    const int64_t sum = std::accumulate(best.begin(), best.end(), int64_t{0});
    if (round % 4 == 0) CHECK(best == std::vector<int64_t>(replicas, 1));
    // All others there are.
    const auto most = static_cast<int64_t>(8 * replicas);
    std::vector<int64_t> shares(replicas, 1);
    for (bool more = true; more;) {
      const int64_t others = std::accumulate(shares.begin(), shares.end(), int64_t{0});
      if (others <= most) {
        CAPTURE(seconds, best, shares);
        REQUIRE(pace(best) <= pace(shares) * (1 + 1e-9));
        if (others < sum) REQUIRE(pace(best) < pace(shares) * (1 - 1e-13));
      }
      more = false;
      for (size_t q = 0; q < replicas && !more; ++q) {
        more = ++shares[q] <= most;
        if (!more) shares[q] = 1;
      }
    }
  }
}

TEST_CASE("Inference on levels and on devices that differ is as fast as on any consecutive devices") {
  std::mt19937 random(21);
  int64_t slower = 0;
  int64_t found_some = 0;
  int64_t found_none = 0;
  for (int64_t c = 0; c < cases(1500); ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, 4)), pick(random, 0, 2) > 0, 60);
    Topology topology = random_levels(random);
    if (pick(random, 0, 1) == 0) make_different(random, &topology);
    if (topology.device_count() > 6 && profile.nodes.size() > 3) continue;
    Problem q;
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, true);
    q.states = &states;
    q.inputs = cost_inputs(profile, topology, 1);
    if (!q.inputs.placed()) continue;
    q.devices = topology.device_count();
    if (pick(random, 0, 2) == 0 && q.inputs.memories.empty()) q.memory_bytes = pick(random, 5000, 30000);
    const double period = static_cast<double>(pick(random, 1, 12)) * 1e-3;
    const std::optional<InferenceSolution> got = chain_for_inference(q, period);
    q.inputs.forward_only = true;
    const double expected = AllPlacements(q, period).least_latency();
    INFO("case " << c);
    expected < 1e299 ? ++found_some : ++found_none;
    if (expected > 1e299) continue;
    REQUIRE(got);
    CHECK(got->solution.period_seconds <= period * (1 + 3e-9));
    // It may stand better than on consecutive devices.
    slower += got->latency_seconds > expected * (1 + 3e-9) ? 1 : 0;
    CHECK(got->latency_seconds <= expected * 1.05);
  }
  CHECK(slower <= found_some / 100);
  CHECK(found_some > 100);
  CHECK(found_none > 30);
}

}  // namespace
}  // namespace pipewright

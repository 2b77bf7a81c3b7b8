// Placement on levels of links and on devices that differ: the search against every placement there is,
// priced rank by rank.
#include "optimizer/cost/levels.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <numeric>

#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cuts/states.h"
#include "optimizer/search/demands.h"
#include "optimizer/search/inference.h"
#include "optimizer/search/search.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

using testing::pick;

/// Every chain of stages on consecutive devices, and every pipeline inside servers, one by one.
class AllPlacements {
 public:
  AllPlacements(const Question& q, int64_t largest) : q_(q), largest_(largest) {}

  void demand(const StageDemands& demands, const std::vector<NodeSet>& pinned) {
    demands_ = demands;
    pinned_ = pinned;
  }
  /// Of those within the period, forward only.
  double least_latency(double period) {
    most_period_ = period * (1 + 1e-9);
    return least_period();
  }

  double least_period() {
    walk(q_.states->last(), 0, true);
    if (!q_.inputs.speeds.empty() || !q_.inputs.memories.empty()) {
      turned_ = true;
      walk(q_.states->last(), 0, true);
    }
    return best_;
  }
  int64_t devices() const { return devices_; }
  const std::string& shape() const { return shape_; }

 private:
  struct Piece {
    int from, to;
    std::vector<int64_t> positions;
    int64_t later;
    bool recompute;
  };

  std::vector<bool> ways() const {
    return q_.recompute == Recompute::kNever ? std::vector<bool>{false} : std::vector<bool>{false, true};
  }

  bool fits(int i, int j, const std::vector<int64_t>& positions, int64_t later, bool recompute) const {
    StageLoad load = load_between(*q_.states, i, j);
    load.workspace = workspace_between(*q_.states, i, j);
    const int64_t memory = limit_of(positions);
    // In classes that differ, running the forward twice changes the shares, which may suit a link. The search
    // recomputes for memory alone.
    if (recompute && !q_.inputs.classes.empty() && fits(i, j, positions, later, false)) return false;
    load.recompute = recompute;
    if (memory == 0) return true;
    if (q_.inputs.forward_only) return inference_memory_bytes(load) <= memory;
    const auto m = static_cast<int64_t>(positions.size());
    return stage_memory(load, m, assumed_in_flight(q_, later, m), q_.inputs).total_bytes() <= memory;
  }

  /// 0: none.
  int64_t limit_of(const std::vector<int64_t>& positions) const {
    int64_t memory = q_.memory_bytes;
    for (const int64_t p : positions) {
      if (q_.inputs.memories.empty()) break;
      const int64_t own = q_.inputs.memories[turned_ ? q_.devices - 1 - p : p];
      if (own > 0 && (memory == 0 || own < memory)) memory = own;
    }
    return memory;
  }

  bool obeys() const {
    const auto count = static_cast<int64_t>(pieces_.size());
    if (demands_.most_stages > 0 && count > demands_.most_stages) return false;
    if (!demands_.replicas.empty() && demands_.replicas.rbegin()->first >= count) return false;
    if (static_cast<int64_t>(pinned_.size()) > count) return false;
    for (int64_t s = 0; s < count; ++s) {
      const Piece& piece = pieces_[static_cast<size_t>(count - 1 - s)];
      const auto given = demands_.replicas.find(s);
      if (given != demands_.replicas.end() && given->second != static_cast<int64_t>(piece.positions.size()))
        return false;
      const NodeSet nodes = q_.states->states[piece.to].done - q_.states->states[piece.from].done;
      for (size_t p = 0; p < pinned_.size(); ++p) {
        if (static_cast<int64_t>(p) != s && nodes.intersects(pinned_[p])) return false;
      }
    }
    return true;
  }

  void walk(int j, int64_t used, bool /*top*/) {
    if (j == 0) {
      price(used);
      return;
    }
    for (int i = 0; i < j; ++i) {
      if (!q_.states->states[i].done.is_subset_of(q_.states->states[j].done)) continue;
      for (int64_t m = 1; used + m <= q_.devices; ++m) {
        std::vector<int64_t> positions(m);
        std::iota(positions.begin(), positions.end(), used);
        for (const bool recompute : ways()) {
          if (!fits(i, j, positions, used, recompute)) continue;
          pieces_.push_back({i, j, positions, used, recompute});
          walk(i, used + m, true);
          pieces_.pop_back();
        }
      }
    }
    const auto& levels = q_.inputs.levels;
    const bool blocks = levels.size() == 2 && !levels[0].shared && !levels[1].shared &&
                        q_.inputs.speeds.empty() && q_.inputs.memories.empty() && !q_.inputs.forward_only;
    if (!blocks || used % levels[0].count != 0) return;
    for (int64_t copies = 2; used + copies * levels[0].count <= q_.devices; ++copies) {
      block(j, used, copies, 0);
    }
  }

  void block(int j, int64_t used, int64_t copies, int64_t filled) {
    const int64_t server = q_.inputs.levels[0].count;
    if (filled == server) {
      walk(j, used + copies * server, true);
      return;
    }
    for (int i = 0; i < j; ++i) {
      if (!q_.states->states[i].done.is_subset_of(q_.states->states[j].done)) continue;
      for (int64_t m = 1; filled + m <= server; ++m) {
        if (m == server) continue;
        std::vector<int64_t> positions;
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t c = 0; c < copies; ++c) positions.push_back(used + c * server + filled + r);
        }
        for (const bool recompute : ways()) {
          if (!fits(i, j, positions, used + filled * copies, recompute)) continue;
          pieces_.push_back({i, j, positions, used, recompute});
          block(i, used, copies, filled + m);
          pieces_.pop_back();
        }
      }
    }
  }

  void price(int64_t used) {
    if (((q_.all_devices || turned_) && used != q_.devices) || !obeys()) return;
    const bool alike = q_.inputs.speeds.empty() && q_.inputs.memories.empty();
    const bool turn = turned_ || (alike && used % largest_ == 0);
    std::vector<StageLoad> loads;
    std::vector<Stage> stages;
    for (size_t p = pieces_.size(); p-- > 0;) {
      const Piece& piece = pieces_[p];
      loads.push_back(load_between(*q_.states, piece.from, piece.to));
      loads.back().recompute = piece.recompute;
      Stage stage;
      for (const int64_t position : piece.positions)
        stage.ranks.push_back(turn ? used - 1 - position : position);
      if (!q_.inputs.speeds.empty()) {
        std::vector<double> seconds;
        for (const int64_t rank : stage.ranks)
          seconds.push_back(compute_seconds_on(loads.back(), q_.inputs, rank));
        stage.shares = best_shares(seconds);
      }
      stages.push_back(stage);
    }
    const PlacedPrice price = price_placed(loads, stages, q_.inputs);
    double period = price.total_seconds();
    if (most_period_ > 0) {
      if (period > most_period_) return;
      period = price.latency_seconds();
    }
    if (period < best_ * (1 - 1e-9) || (period < best_ * (1 + 1e-9) && used < devices_)) {
      devices_ = used;
      shape_.clear();
      for (size_t s = 0; s < stages.size(); ++s) {
        shape_ += " [";
        for (size_t q = 0; q < stages[s].ranks.size(); ++q) {
          shape_ += std::to_string(stages[s].ranks[q]);
          if (!stages[s].shares.empty()) shape_ += "x" + std::to_string(stages[s].shares[q]);
          shape_ += q + 1 < stages[s].ranks.size() ? "," : "]";
        }
      }
    }
    best_ = std::min(best_, period);
  }

  const Question& q_;
  int64_t largest_;
  bool turned_ = false;
  double most_period_ = 0;  // 0: none
  StageDemands demands_;
  std::vector<NodeSet> pinned_;
  std::vector<Piece> pieces_;
  double best_ = 1e300;
  int64_t devices_ = int64_t{1} << 40;
  std::string shape_;
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

StageDemands random_demands(std::mt19937& random, const Profile& profile) {
  StageDemands demands;
  if (pick(random, 0, 1) == 0) demands.most_stages = pick(random, 1, 3);
  for (int64_t i = pick(random, 0, 2); i > 0; --i) demands.replicas[pick(random, 0, 2)] = pick(random, 1, 3);
  for (int64_t i = pick(random, 0, 1); i > 0; --i) {
    const auto node = static_cast<size_t>(pick(random, 0, 99)) % profile.nodes.size();
    demands.pins[profile.nodes[node].name] = pick(random, 0, 2);
  }
  return demands;
}

/// What else is asked for.
struct Asked {
  Recompute recompute = Recompute::kNever;
  bool demands = false;
  bool intervals = false;
  bool classes = false;  // devices of classes that are measured by themselves
};

void compare_placements(unsigned seed, int64_t count, bool differ, const Asked& asked = {}) {
  const Recompute recompute = asked.recompute;
  std::mt19937 random(seed);
  int64_t infeasible = 0;
  int64_t recomputing = 0;
  for (int64_t c = 0; c < count; ++c) {
    const bool chain = pick(random, 0, 2) > 0;
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, chain ? 4 : 4)), chain, 60);
    Topology topology = random_levels(random);
    if (differ) make_different(random, &topology);
    for (TopologyDevice& device : topology.devices) {
      // So little that some stages do not fit otherwise.
      if (recompute != Recompute::kNever) device.memory_bytes = std::min<int64_t>(device.memory_bytes, 16000);
    }
    ClassProfiles measured;
    for (const std::string name : {"a", "b"}) {
      if (!asked.classes) break;
      const Profile other = testing::random_profile(random, static_cast<int>(profile.nodes.size()), true, 0);
      measured[name] = profile;
      for (size_t v = 0; v < profile.nodes.size(); ++v) {
        ProfiledNode& node = measured[name].nodes[v];
        node.forward_seconds = other.nodes[v].forward_seconds;
        node.backward_input_seconds = other.nodes[v].backward_input_seconds;
        node.backward_weight_seconds = other.nodes[v].backward_weight_seconds;
      }
    }
    for (size_t d = 0; asked.classes && d < topology.devices.size(); ++d) {
      const char* names[] = {"", "a", "b"};
      topology.devices[d].device_class = names[3 * d / topology.devices.size()];
    }
    if (topology.device_count() > 6 && profile.nodes.size() > 3) continue;
    Question q;
    const Dataflow flow(profile, measured);
    const States states = enumerate_states(flow, true);
    q.states = &states;
    q.inputs = cost_inputs(profile, topology, 1, measured);
    if (!q.inputs.placed()) continue;
    q.devices = topology.device_count();
    q.recompute = recompute;
    q.all_devices = pick(random, 0, 4) == 0;
    const bool limited = recompute == Recompute::kWhereNeeded || pick(random, 0, 2) == 0;
    if (limited && q.inputs.memories.empty()) q.memory_bytes = pick(random, 5000, 60000);
    int64_t largest = 1;
    for (size_t l = 0; l + 1 < q.inputs.levels.size(); ++l) largest *= q.inputs.levels[l].count;
    if (q.inputs.levels.back().shared) largest = q.devices;
    StageDemands demands;
    std::vector<NodeSet> pinned;
    if (asked.demands) {
      q.all_devices = false;
      demands = random_demands(random, profile);
      pinned = pinned_nodes(profile, demands);
    }
    if (asked.intervals) {
      const bool flush = pick(random, 0, 1) == 0;
      q.inputs.weights = flush ? WeightRule::kFlush : WeightRule::kTwoVersions;
      q.interval = q.inputs.minibatches_per_update = pick(random, 1, 12);
      q.whole_interval = flush && pick(random, 0, 1) == 0;
    }
    AllPlacements all(q, largest);
    all.demand(demands, pinned);
    const double expected = all.least_period();
    std::string levels;
    for (const TopologyLevel& level : q.inputs.levels) {
      levels += " " + std::to_string(level.count) + (level.shared ? "s" : "");
    }
    INFO("case " << c << levels << ", best " << all.shape());
    const std::optional<Answer> got = demands.any() ? search_with_demands(q, demands, pinned) : search(q);
    INFO("case " << c << " of seed " << seed << ": " << profile.nodes.size() << " nodes, " << q.devices
                 << " devices, " << q.inputs.levels.size() << " levels, memory " << q.memory_bytes << ", all "
                 << q.all_devices);
    REQUIRE(got.has_value() == (expected < 1e299));
    infeasible += !got;
    if (got) {
      for (const FoundStage& stage : got->stages) recomputing += stage.recompute;
    }
    if (!got) continue;
    REQUIRE(got->exact);
    CHECK(got->bound_seconds <= got->period_seconds);
    CHECK(got->bound_seconds >= got->period_seconds * (1 - 3e-9));
    REQUIRE(got->period_seconds == Approx(expected).epsilon(3e-9).margin(1e-15));
    CHECK(got->devices == all.devices());
    std::vector<int64_t> ranks;
    for (const FoundStage& stage : got->stages)
      ranks.insert(ranks.end(), stage.ranks.begin(), stage.ranks.end());
    std::sort(ranks.begin(), ranks.end());
    for (size_t r = 0; r < ranks.size(); ++r) CHECK(ranks[r] == static_cast<int64_t>(r));
  }
  if (count >= 100) {
    CHECK(infeasible > 0);
    INFO("seed " << seed << ", " << recomputing << " stages recompute");
    if (!asked.demands && !asked.classes) CHECK((recomputing > 0) == (recompute != Recompute::kNever));
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

TEST_CASE("Placement on levels equals brute force") { compare_placements(11, cases(4000), false); }

/// Each node in `parts` parts, between which so much passes that no stage ends there.
Profile split(const Profile& profile, int parts) {
  Profile fine = profile;
  fine.nodes.clear();
  for (const ProfiledNode& node : profile.nodes) {
    ProfiledNode part;
    part.inputs = node.inputs;
    for (int p = 0; p < parts; ++p) {
      part.name = node.name + "." + std::to_string(p);
      part.outputs = {{part.name + ".out", int64_t{1} << 36}};
      if (p + 1 == parts) {
        part.outputs = node.outputs;
        part.parameters = node.parameters;
        part.parameter_bytes = node.parameter_bytes;
        part.trainable_parameter_bytes = node.trainable_parameter_bytes;
      }
      part.forward_seconds = node.forward_seconds / parts;
      part.backward_input_seconds = node.backward_input_seconds / parts;
      part.backward_weight_seconds = node.backward_weight_seconds / parts;
      fine.nodes.push_back(part);
      part.inputs = {part.outputs[0].name};
    }
  }
  return fine;
}

TEST_CASE("Placement among so many cuts that a few are tried first equals brute force") {
  std::mt19937 random(25);
  for (int64_t c = 0; c < cases(200); ++c) {
    const Profile profile = testing::random_profile(random, static_cast<int>(pick(random, 2, 4)), true, 60);
    const Profile fine = split(profile, 60);
    const Topology topology = random_levels(random);
    if (topology.device_count() > 6 && profile.nodes.size() > 3) continue;
    Question q;
    q.inputs = cost_inputs(profile, topology, 1);
    if (!q.inputs.placed()) continue;
    q.devices = topology.device_count();
    const States coarse = enumerate_states(Dataflow(profile), false);
    q.states = &coarse;
    int64_t largest = 1;
    for (size_t l = 0; l + 1 < q.inputs.levels.size(); ++l) largest *= q.inputs.levels[l].count;
    if (q.inputs.levels.back().shared) largest = q.devices;
    AllPlacements all(q, largest);
    const double expected = all.least_period();
    INFO("case " << c << ", best " << all.shape());
    const States states = enumerate_states(Dataflow(fine), false);
    q.states = &states;
    const std::optional<Answer> got = search(q);
    REQUIRE(got.has_value());
    CHECK(got->period_seconds == Approx(expected).epsilon(1e-8).margin(1e-15));
    CHECK(got->devices == all.devices());
  }
}

TEST_CASE("Placement on devices that differ equals brute force") {
  compare_placements(12, cases(2000), true);
}

TEST_CASE("Placement where stages may recompute equals brute force") {
  const Asked asked = {Recompute::kWhereNeeded};
  compare_placements(14, cases(800), false, asked);
  compare_placements(15, cases(400), true, asked);
}

TEST_CASE("Placement of stages that are demanded equals brute force") {
  const Asked asked = {Recompute::kNever, true};
  compare_placements(16, cases(1500), false, asked);
  compare_placements(17, cases(600), true, asked);
}

TEST_CASE("Placement with update intervals equals brute force") {
  compare_placements(19, cases(1000), false, {Recompute::kNever, false, true});
  compare_placements(20, cases(500), true, {Recompute::kWhereNeeded, true, true});
}

TEST_CASE("Least latency at a rate on levels and on devices that differ equals brute force") {
  std::mt19937 random(21);
  int64_t found_some = 0;
  int64_t found_none = 0;
  for (int64_t c = 0; c < cases(1500); ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, 4)), pick(random, 0, 2) > 0, 60);
    Topology topology = random_levels(random);
    if (pick(random, 0, 1) == 0) make_different(random, &topology);
    if (topology.device_count() > 6 && profile.nodes.size() > 3) continue;
    Question q;
    const Dataflow flow(profile);
    const States states = enumerate_states(flow, true);
    q.states = &states;
    q.inputs = cost_inputs(profile, topology, 1);
    if (!q.inputs.placed()) continue;
    q.devices = topology.device_count();
    if (pick(random, 0, 2) == 0 && q.inputs.memories.empty()) q.memory_bytes = pick(random, 5000, 30000);
    const double period = static_cast<double>(pick(random, 1, 12)) * 1e-3;
    const std::optional<InferenceAnswer> got = search_inference(q, period);
    q.inputs.forward_only = true;
    AllPlacements all(q, q.devices);
    const double expected = all.least_latency(period);
    INFO("case " << c << ", best " << all.shape());
    REQUIRE(got.has_value() == (expected < 1e299));
    got ? ++found_some : ++found_none;
    if (!got) continue;
    CHECK(got->latency_seconds == Approx(expected).epsilon(3e-9).margin(1e-15));
    CHECK(got->answer.period_seconds <= period * (1 + 3e-9));
    CHECK(got->answer.devices == all.devices());
  }
  CHECK(found_some > 100);
  CHECK(found_none > 30);
}

TEST_CASE("Placement on classes of devices, each measured by itself, equals brute force") {
  compare_placements(22, cases(1500), true, {.classes = true});
  compare_placements(23, cases(300), true, {.recompute = Recompute::kWhereNeeded, .classes = true});
  compare_placements(24, cases(400), true, {.demands = true, .intervals = true, .classes = true});
}

}  // namespace
}  // namespace pipewright

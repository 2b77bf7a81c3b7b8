// PipeDream's problem: every plan there is, one by one, and the numbers that its own optimizer printed.
#include "optimizer/baselines/pipedream.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>
#include <set>

#include "graph/document.h"
#include "graph/pipedream.h"
#include "optimizer/cost/cost_model.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;
using Mask = uint32_t;

Topology servers(int64_t devices, int64_t count, double inside, double between) {
  Topology topology = flat_topology(devices, inside, 0, 0);
  topology.levels.push_back({count, between, 0, false});
  return topology;
}

/// The formulas of the header over every chain of cuts, with every number of devices for each stage.
class EveryPlan {
 public:
  EveryPlan(const Profile& profile, const Topology& topology)
      : profile_(profile),
        flow_(profile),
        devices_(topology.levels[0].count),
        servers_(topology.levels.size() > 1 ? topology.levels[1].count : 1),
        all_((Mask{1} << profile.nodes.size()) - 1),
        inside_(topology.levels[0].bandwidth_bytes_per_second),
        above_(topology.levels.back().bandwidth_bytes_per_second) {
    walk();
  }

  double least() {
    if (servers_ > 1) return runs(0, servers_);
    double least = 1e300;
    for (int64_t m = 1; m <= devices_; ++m) least = std::min(least, pipeline(0, all_, m, true));
    return least;
  }
  size_t cuts() const { return cuts_.size(); }

 private:
  /// From the first node, a reader of one that is there with all that it still needs.
  void walk() {
    cuts_ = {0, all_};
    std::vector<Mask> to_do = {1};
    while (!to_do.empty()) {
      const Mask set = to_do.back();
      to_do.pop_back();
      if (!separates(set)) cuts_.insert(set);
      if (!walked_.insert(set).second) continue;
      for (int v = 0; v < flow_.size(); ++v) {
        const auto& read = flow_.predecessors[v];
        if ((set >> v & 1) != 0 ||
            std::none_of(read.begin(), read.end(), [&](int p) { return (set >> p & 1) != 0; }))
          continue;
        to_do.push_back(set | Mask{1} << v | static_cast<Mask>(flow_.ancestors[v].to_ulong()));
      }
    }
  }
  bool separates(Mask set) const {
    return !separated_tie(flow_, NodeSet(static_cast<size_t>(flow_.size()), set)).empty();
  }

  double parameters(Mask nodes) const {
    double bytes = 0;
    std::set<std::string> seen;
    for (size_t v = 0; v < profile_.nodes.size(); ++v) {
      const ProfiledNode& node = profile_.nodes[v];
      if ((nodes >> v & 1) == 0) continue;
      if (node.parameters.empty() || seen.insert(node.parameters[0]).second)
        bytes += static_cast<double>(node.parameter_bytes);
    }
    return bytes;
  }
  static double stage(double seconds, double bytes, int64_t m, double bandwidth) {
    const auto replicas = static_cast<double>(m);
    return (seconds + 4 * (replicas - 1) / replicas * bytes / bandwidth) / replicas;
  }
  double cuts_seconds(Mask from, Mask to, int64_t m, double bandwidth) const {
    const auto bytes = [&](Mask set) {
      return static_cast<double>(pipedream_cut_bytes(flow_, NodeSet(static_cast<size_t>(flow_.size()), set)));
    };
    return 2 * std::max(bytes(from), bytes(to)) / (bandwidth * static_cast<double>(m));
  }

  /// Of one server.
  double pipeline(Mask from, Mask end, int64_t devices, bool first) const {
    double best = 1e300;
    for (const Mask to : cuts_) {
      if ((to & from) != from || to == from || (to & ~end) != 0) continue;
      double seconds = 0;
      for (size_t v = 0; v < profile_.nodes.size(); ++v)
        if (((to & ~from) >> v & 1) != 0) seconds += profile_.nodes[v].compute_seconds();
      for (int64_t m = 1; m <= devices; ++m) {
        if ((to == end) != (m == devices)) continue;
        double mine = stage(seconds, parameters(to & ~from), m, inside_);
        if (!first) mine = std::max(mine, cuts_seconds(from, to, m, inside_));
        best = std::min(best, to == end ? mine : std::max(mine, pipeline(to, end, devices - m, false)));
      }
    }
    return best;
  }
  /// Of the rest of the model, on all of so many servers.
  double runs(Mask from, int64_t left) const {
    double best = 1e300;
    for (const Mask to : cuts_) {
      if ((to & from) != from || to == from) continue;
      for (int64_t m = 1; m <= left; ++m) {
        if ((to == all_) != (m == left)) continue;
        const double period = pipeline(from, to, devices_, true);
        const double bytes = parameters(to & ~from);
        double mine = stage(period, bytes, m, above_ * static_cast<double>(from == 0 ? devices_ : 1));
        if (from != 0) mine = std::max(mine, cuts_seconds(from, to, m, above_));
        best = std::min(best, to == all_ ? mine : std::max(mine, runs(to, left - m)));
      }
    }
    return best;
  }

  const Profile& profile_;
  const Dataflow flow_;
  const int64_t devices_, servers_;
  const Mask all_;
  const double inside_, above_;
  std::set<Mask> walked_, cuts_;
};

TEST_CASE("PipeDream: the search equals every plan there is, on one level and on two") {
  std::mt19937 random(7);
  int64_t piped = 0;
  for (int c = 0; c < 600; ++c) {
    const Profile profile =
        testing::random_profile(random, static_cast<int>(pick(random, 1, 6)), c % 2 == 0, 50);
    const double bandwidth = std::vector<double>{1e5, 1e6, 1e7, 1e9}[c % 4];
    const Topology topology = c % 3 == 0
                                  ? flat_topology(pick(random, 1, 6), bandwidth, 1e-4, 0)
                                  : servers(pick(random, 2, 3), pick(random, 2, 3), 4 * bandwidth, bandwidth);
    EveryPlan every(profile, topology);
    const PipeDreamPlan plan = search_pipedream(profile, topology);
    CAPTURE(c);
    CHECK(plan.seconds == Approx(every.least()).epsilon(1e-9).margin(1e-15));
    CHECK(plan.cuts == static_cast<int64_t>(every.cuts()));
    piped += plan.stages.size() > 1 ? 1 : 0;
    // Each node is in one stage and each device has at most one.
    std::set<int> nodes;
    std::set<int64_t> ranks;
    size_t all_nodes = 0;
    int64_t all_ranks = 0;
    for (const PipeDreamStage& stage : plan.stages) {
      nodes.insert(stage.nodes.begin(), stage.nodes.end());
      ranks.insert(stage.ranks.begin(), stage.ranks.end());
      all_nodes += stage.nodes.size();
      all_ranks += static_cast<int64_t>(stage.ranks.size());
    }
    CHECK(nodes.size() == profile.nodes.size());
    CHECK(all_nodes == profile.nodes.size());
    CHECK(all_ranks == plan.devices);
    CHECK(static_cast<int64_t>(ranks.size()) == plan.devices);
    CHECK(*ranks.rbegin() + 1 == plan.devices);
    if (topology.levels.size() > 1) CHECK(plan.devices == topology.device_count());
  }
  CHECK(piped > 100);
}

ProfiledNode node(const std::string& name, std::vector<std::string> inputs, int64_t bytes) {
  ProfiledNode made;
  made.name = made.layer = name;
  made.inputs = std::move(inputs);
  made.outputs = {{name + ".out", bytes}};
  made.forward_seconds = 0.1;
  return made;
}

TEST_CASE("PipeDream: a fork that all branches have read counts again") {
  // fork -> a, b -> join. At {fork, a, b} each of a and b alone leaves the fork with a reader that it does
  // not know.
  Profile profile;
  profile.model = "diamond";
  profile.nodes = {node("fork", {}, 10), node("a", {"fork.out"}, 100), node("b", {"fork.out"}, 1000),
                   node("join", {"a.out", "b.out"}, 1)};
  const Dataflow flow(profile);
  const NodeSet done(4, 7);
  CHECK(pipedream_cut_bytes(flow, done) == 1110);
  CHECK(live_bytes(flow, done) == 1100);
}

TEST_CASE("PipeDream: what nobody reads and is called __getitem__ stays where what it reads is") {
  Profile profile;
  profile.model = "dropped";
  profile.nodes = {node("a", {}, 10), node("b", {"a.out"}, 10), node("pair", {"a.out"}, 10)};
  profile.nodes[2].layer = "__getitem__(1)";
  for (const int v : {0, 1}) {  // two replicas would exchange for seconds
    profile.nodes[v].parameters = {profile.nodes[v].name + ".weight"};
    profile.nodes[v].parameter_bytes = 1000000000;
  }
  const PipeDreamPlan plan = search_pipedream(profile, flat_topology(2, 1e9, 0, 0));
  CHECK(plan.cuts == 3);
  REQUIRE(plan.stages.size() == 2);
  CHECK(plan.stages[0].nodes == std::vector<int>{0, 2});
}

std::string shape(const PipeDreamPlan& plan) {
  std::string text;
  for (const PipeDreamStage& stage : plan.stages)
    text += (text.empty() ? "" : "-") + std::to_string(stage.ranks.size());
  return text;
}

Profile published_profile(const std::string& name) {
  const std::filesystem::path file = testing::shared_data() / "pipedream_profiles" / (name + ".txt");
  return parse_pipedream_profile(read_file(file), file.string());
}

struct Anchor {
  const char* profile;
  int64_t devices;
  double bandwidth;
  double seconds;
  const char* shape;             ///< "" = several plans share the period
  double tolerance = 5.0001e-6;  ///< of a period printed in milliseconds with two decimals
};

// Predicted seconds of PipeDream's optimizer with activation traffic costed, printed by it to these digits.
TEST_CASE("PipeDream: periods of its optimizer come out") {
  if (testing::shared_data().empty()) return testing::skip("the profiles of PipeDream are not here");
  const Anchor anchors[] = {
      {"vgg16", 4, 1e9, 0.205520896, "3-1", 1e-14},
      {"resnet50", 8, 1.25e9, 0.0822083584, "4-3-1", 1e-14},
      {"vgg16", 16, 1.25e9, 0.05479489083076923, "13-2-1", 1e-14},
      {"gnmt", 4, 1.25e9, 0.025867999999999988, "1-1-1-1", 1e-14},
      {"alexnet", 2, 1.25e9, 53.16e-3, "1-1"},
      {"alexnet", 4, 1.25e9, 32.46e-3, "3-1"},
      {"alexnet", 8, 1.25e9, 15.10e-3, "7-1"},
      {"alexnet", 16, 1.25e9, 15.10e-3, ""},
      {"vgg16", 2, 1.25e9, 381.06e-3, "1-1"},
      {"vgg16", 4, 1.25e9, 176.35e-3, "3-1"},
      {"vgg16", 8, 1.25e9, 100.84e-3, "7-1"},
      {"squeezenet1_0", 2, 1.25e9, 146.68e-3, "2"},
      {"squeezenet1_0", 4, 1.25e9, 74.34e-3, "4"},
      {"squeezenet1_0", 8, 1.25e9, 37.42e-3, "8"},
      {"squeezenet1_0", 16, 1.25e9, 18.77e-3, "16"},
      {"resnet50", 2, 1.25e9, 285.06e-3, "1-1"},
      {"resnet50", 4, 1.25e9, 151.99e-3, "2-2"},
      {"resnet50", 16, 1.25e9, 43.85e-3, "8-5-3"},
      {"resnext50", 4, 1.25e9, 164.42e-3, "3-1"},
      {"resnext50", 8, 1.25e9, 96.32e-3, "5-2-1"},
      {"gnmt", 2, 1.25e9, 45.94e-3, "1-1"},
      {"gnmt", 8, 1.25e9, 19.29e-3, ""},
      {"gnmt", 16, 1.25e9, 17.12e-3, ""},
  };
  for (const Anchor& anchor : anchors) {
    const PipeDreamPlan plan = search_pipedream(published_profile(anchor.profile),
                                                flat_topology(anchor.devices, anchor.bandwidth, 0, 0));
    INFO(anchor.profile << " on " << anchor.devices << ": " << shape(plan) << ", " << plan.seconds);
    CHECK(std::abs(plan.seconds - anchor.seconds) <= anchor.tolerance);
    if (*anchor.shape != 0) CHECK(shape(plan) == anchor.shape);
  }
}

TEST_CASE("PipeDream: periods of its recursion over two levels come out") {
  if (testing::shared_data().empty()) return testing::skip("the profiles of PipeDream are not here");
  struct Row {
    const char* model;
    double four_by_four_ms;
    double eight_by_two_ms;
  };
  // As printed by the original, to 10 us; "4x4" 10 and 1.25 GB/s, "8x2" 30 and 3.125 GB/s.
  const Row rows[] = {{"alexnet", 15.10, 9.68},
                      {"vgg16", 67.13, 65.77},
                      {"squeezenet1_0", 18.62, 18.07},
                      {"resnet50", 43.21, 31.99},
                      {"resnext50", 52.17, 41.21},
                      {"gnmt", 11.08, 8.86},
                      {"resnet101", 52.71, /*it did not finish*/ 1e3}};
  for (const Row& row : rows) {
    INFO(row.model);
    const Profile profile = published_profile(row.model);
    for (const bool four : {true, false}) {
      const double expected = four ? row.four_by_four_ms : row.eight_by_two_ms;
      const double seconds =
          search_pipedream(profile, four ? servers(4, 4, 10e9, 1.25e9) : servers(8, 2, 30e9, 3.125e9))
              .seconds;
      CHECK(1e3 * seconds < expected + 0.005001);
      if (expected < 1e3) CHECK(1e3 * seconds > expected - 0.005001);
    }
  }
  // To all digits.
  const auto seconds = [](const char* model) {
    return search_pipedream(published_profile(model), servers(4, 4, 10e9, 1.25e9)).seconds;
  };
  CHECK(seconds("resnet50") == Approx(0.04320846919999994).epsilon(1e-12));
  CHECK(seconds("gnmt") == Approx(0.011081).epsilon(1e-12));
}

TEST_CASE("PipeDream: says what it does not describe") {
  std::mt19937 random(5);
  const Profile profile = testing::random_profile(random, 4, true, 0);
  const auto error = [&](const Topology& topology) {
    return testing::error_of<InputError>([&] { search_pipedream(profile, topology); });
  };
  Topology topology = servers(2, 2, 1e7, 1e6);
  topology.levels.push_back({2, 1e5, 0, false});
  CHECK_THAT(error(topology), Catch::Contains("one or two levels"));
  topology = servers(2, 2, 1e7, 1e6);
  topology.levels[1].shared = true;
  CHECK_THAT(error(topology), Catch::Contains("separate links"));
  topology = flat_topology(2, 1e6, 0, 0);
  topology.devices = {{"host", 1, 0}, {"host", 0.5, 0}};
  CHECK_THAT(error(topology), Catch::Contains("equal devices"));
  CHECK_THAT(error(flat_topology(1 << 24, 1e6, 0, 0)), Catch::Contains("than its table has room for"));
  Profile wide = profile;
  wide.nodes = {node("source", {}, 1)};
  for (int v = 0; v < 13; ++v) wide.nodes.push_back(node("n" + std::to_string(v), {"source.out"}, 1));
  CHECK_THAT(testing::error_of<InputError>([&] { search_pipedream(wide, flat_topology(2, 1e6, 0, 0)); }),
             Catch::Contains("more than 4096 cuts"));
}

}  // namespace
}  // namespace pipewright

#include "optimizer/plan/stage_layers.h"

#include <catch2/catch.hpp>

#include "graph/plan.h"
#include "optimizer/plan/optimizer.h"
#include "tests/optimizer/random_profile.h"

namespace pipewright {
namespace {

ProfiledNode node(const std::string& name, const std::string& layer, double seconds, int64_t parameters) {
  ProfiledNode made;
  made.name = name;
  made.layer = layer;
  made.forward_seconds = seconds;
  made.parameter_bytes = parameters;
  return made;
}

using Names = std::vector<std::string>;

TEST_CASE("what is left of earlier layers names no stage: the sums of a mixture's losses do not") {
  Profile profile;
  for (int i = 0; i < 4; ++i) {
    const std::string layer = "moe." + std::to_string(i);
    profile.nodes.push_back(node("experts" + std::to_string(i), layer, 10e-3, 1 << 20));
    profile.nodes.push_back(node("loss" + std::to_string(i), layer, 1e-6, 0));
  }
  profile.nodes.push_back(node("head", "head", 1e-3, 4096));
  profile.nodes.push_back(node("sum", "", 1e-6, 0));
  const LayerWeights layers(profile);
  CHECK(layers.of({"experts0", "experts1", "loss0"}) == Names{"moe.0", "moe.1"});
  CHECK(layers.of({"loss0", "loss1", "loss2", "loss3", "head", "sum"}) == Names{"head"});
  CHECK(layers.of({"loss1", "loss2"}) == Names{"moe.1", "moe.2"});  // of nothing else
  CHECK(layers.of({"sum"}).empty());
  CHECK(layers.of({"unknown"}).empty());
}

TEST_CASE("a layer is named where a tenth of its time or of its parameters is") {
  Profile profile;
  profile.nodes = {node("weights", "fc", 0, 100), node("product", "fc", 1, 0), node("bias", "fc", 0.09, 9),
                   node("free", "view", 0, 0), node("other", "conv", 1, 1)};
  const LayerWeights layers(profile);
  CHECK(layers.of({"weights", "other"}) == Names{"fc", "conv"});
  CHECK(layers.of({"product", "other"}) == Names{"fc", "conv"});
  CHECK(layers.of({"bias", "other"}) == Names{"conv"});
  CHECK(layers.of({"free"}) == Names{"view"});
}

TEST_CASE("plans at random: every layer is named by some stage, by each that holds all of it that weighs") {
  std::mt19937 random(8);
  for (int round = 0; round < 40; ++round) {
    const Profile profile = testing::random_profile(random, 8, true, 60);
    PlanRequest request;
    request.strategy = round % 2 == 0 ? "best" : "straight";
    const Topology topology = flat_topology(3, 1e9, 1e-5, 0);
    Plan plan;
    try {
      plan = make_plan(profile, topology, request);
    } catch (const InfeasibleError&) {
      continue;
    }
    std::map<std::string, double> whole;
    for (const ProfiledNode& each : profile.nodes) whole[each.layer] += each.compute_seconds();
    std::set<std::string> named;
    for (const Stage& stage : plan.stages) named.insert(stage.layers.begin(), stage.layers.end());
    for (const auto& [layer, seconds] : whole) {
      INFO(layer);
      CHECK((layer.empty() || seconds == 0 || named.count(layer) == 1));
    }
  }
}

}  // namespace
}  // namespace pipewright

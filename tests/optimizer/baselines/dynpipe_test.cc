// DynPipe's problem: brute force, and the plans of its published profiles.
#include "optimizer/baselines/dynpipe.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/pipedream.h"
#include "tests/optimizer/random_profile.h"
#include "tests/support/error_of.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::pick;

DynPipeProblem random_problem(std::mt19937& random) {
  DynPipeProblem problem;
  const int layers = pick(random, 1, 6);
  for (int l = 0; l < layers; ++l) {
    problem.layers.push_back({"l" + std::to_string(l), static_cast<double>(pick(random, 0, 9)),
                              static_cast<double>(pick(random, 0, 20)),
                              static_cast<double>(pick(random, 0, 20))});
  }
  problem.devices = pick(random, 1, 5);
  problem.most_stages = pick(random, 1, 6);
  problem.bandwidth_bytes_per_second = pick(random, 1, 10);
  const DynPipeRule rules[] = {DynPipeRule::kDynPipe, DynPipeRule::kPipeDream};
  problem.rule = rules[pick(random, 0, 1)];
  return problem;
}

// By number of stages.
std::map<size_t, double> brute_force(const DynPipeProblem& problem) {
  std::map<size_t, double> best;
  std::vector<DynPipeStage> stages;
  const std::function<void(int64_t, int64_t)> extend = [&](int64_t layers, int64_t devices) {
    if (layers == 0 && devices == 0) {
      const double seconds = dynpipe_seconds(problem, stages);
      const auto [at, first] = best.try_emplace(stages.size(), seconds);
      at->second = std::min(at->second, seconds);
    }
    if (static_cast<int64_t>(stages.size()) == problem.most_stages) return;
    for (int64_t l = 1; l <= layers; ++l)
      for (int64_t r = 1; r <= devices; ++r) {
        stages.push_back({l, r});
        extend(layers - l, devices - r);
        stages.pop_back();
      }
  };
  extend(static_cast<int64_t>(problem.layers.size()), problem.devices);
  return best;
}

std::vector<int64_t> layers_of(const DynPipePlan& plan) {
  std::vector<int64_t> layers;
  for (const DynPipeStage& stage : plan.stages) layers.push_back(stage.layers);
  return layers;
}

std::vector<int64_t> replicas_of(const DynPipePlan& plan) {
  std::vector<int64_t> replicas;
  for (const DynPipeStage& stage : plan.stages) replicas.push_back(stage.replicas);
  return replicas;
}

// The chain that DynPipe makes of PipeDream's profile: its nodes by number, without those that do nothing,
// the output of the last one crossing a cut. `activations`, `parameters`: parts of the bytes that it counts.
DynPipeProblem published(const std::string& model, double activations, double parameters) {
  const auto file = testing::shared_data() / "pipedream_profiles" / (model + ".txt");
  const Profile profile = parse_pipedream_profile(read_file(file), file.string());
  std::map<int, const ProfiledNode*> by_number;
  for (const ProfiledNode& node : profile.nodes) {
    if (node.layer.rfind("Dropout", 0) != 0) by_number[std::stoi(node.name.substr(4))] = &node;
  }
  DynPipeProblem problem;
  for (const auto& [number, node] : by_number) {
    double bytes = 0;
    for (const ProfiledValue& value : node->outputs) bytes += static_cast<double>(value.bytes);
    problem.layers.push_back({node->name, node->compute_seconds(), activations * bytes,
                              parameters * static_cast<double>(node->parameter_bytes)});
  }
  problem.devices = problem.most_stages = 8;
  problem.bandwidth_bytes_per_second = 886.0 * (1 << 20);
  return problem;
}

}  // namespace

TEST_CASE("the rule at a cut: a transfer costs nothing where the faster side has the time for it") {
  DynPipeProblem problem{.layers = {{"a", 10, 3, 0}, {"b", 2, 0, 0}}, .devices = 2, .most_stages = 2};
  const std::vector<DynPipeStage> stages = {{1, 1}, {1, 1}};
  CHECK(dynpipe_seconds(problem, stages) == 10);  // 3 < (10 - 2) / 2
  problem.layers[0].activation_bytes = 5;
  CHECK(dynpipe_seconds(problem, stages) == 11);  // (10 + 2) / 2 + 5
  problem.rule = DynPipeRule::kPipeDream;
  CHECK(dynpipe_seconds(problem, stages) == 10);
  problem.layers[0].activation_bytes = 6;
  CHECK(dynpipe_seconds(problem, stages) == 12);
  // Two replicas take a half, send on two links, and exchange what they update: 2 * 1/2 * 8 bytes.
  problem = {.layers = {{"a", 10, 6, 8}, {"b", 2, 0, 0}}, .devices = 3, .most_stages = 2};
  CHECK(dynpipe_seconds(problem, {{1, 2}, {1, 1}}) == Approx(5 + 8));
}

TEST_CASE("the search finds the best of all plans, for every number of stages") {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const DynPipeProblem problem = random_problem(random);
    CAPTURE(i, problem.layers.size(), problem.devices, problem.most_stages);
    const auto expected = brute_force(problem);
    const auto plans = search_dynpipe(problem);
    REQUIRE(plans.size() == expected.size());
    for (const DynPipePlan& plan : plans) {
      CHECK(plan.seconds == Approx(expected.at(plan.stages.size())).epsilon(1e-12).margin(1e-12));
      CHECK(dynpipe_seconds(problem, plan.stages) == Approx(plan.seconds).epsilon(1e-12).margin(1e-12));
    }
  }
}

TEST_CASE("slower devices or links make no plan faster") {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    DynPipeProblem problem = random_problem(random);
    const auto before = search_dynpipe(problem);
    problem.bandwidth_bytes_per_second /= 1.5;
    problem.layers[static_cast<size_t>(pick(random, 0, static_cast<int>(problem.layers.size()) - 1))]
        .seconds += 1;
    const auto after = search_dynpipe(problem);
    REQUIRE(after.size() == before.size());
    for (size_t s = 0; s < before.size(); ++s) CHECK(after[s].seconds >= before[s].seconds * (1 - 1e-12));
  }
}

TEST_CASE("VGG16 on 8 devices: the plans that DynPipe recorded, to their digits") {
  if (testing::shared_data().empty()) return testing::skip("no published profiles here");
  // Its program takes an eighth of the activations' bytes.
  DynPipeProblem problem = published("vgg16", 1.0 / 8, 1);
  CHECK(problem.layers.size() == 38);
  auto plans = search_dynpipe(problem);
  CHECK(std::abs(plans[2].seconds - 0.10525) < 5e-6);
  CHECK(layers_of(plans[2]) == std::vector<int64_t>{10, 11, 17});
  CHECK(replicas_of(plans[2]) == std::vector<int64_t>{4, 3, 1});
  CHECK(std::abs(plans[3].seconds - 0.10366) < 5e-6);
  CHECK(&least_stale(plans, 0) == &plans[3]);
  CHECK(&least_stale(plans, 0.001) == &plans[2]);  // as a person chose
  problem.rule = DynPipeRule::kPipeDreamAsCoded;
  plans = search_dynpipe(problem);
  CHECK(std::abs(plans[2].seconds - 0.09723) < 6e-6);
  CHECK(layers_of(plans[2]) == std::vector<int64_t>{15, 5, 18});
  CHECK(replicas_of(plans[2]) == std::vector<int64_t>{6, 1, 1});
  problem.rule = DynPipeRule::kPipeDream;
  const DynPipePlan pipedream = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(pipedream.seconds - 0.09441) < 5e-6);
  CHECK(layers_of(pipedream) == std::vector<int64_t>{8, 7, 6, 17});
  CHECK(replicas_of(pipedream) == std::vector<int64_t>{4, 2, 1, 1});

  problem = published("vgg16", 1, 1);
  const DynPipePlan right = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(right.seconds - 0.11480) < 5e-6);
  CHECK(layers_of(right) == std::vector<int64_t>{17, 7, 14});
  CHECK(replicas_of(right) == std::vector<int64_t>{5, 2, 1});
  problem.rule = DynPipeRule::kPipeDream;
  const DynPipePlan other = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(other.seconds - 0.10873) < 5e-6);
  CHECK(layers_of(other) == std::vector<int64_t>{14, 10, 14});
  CHECK(replicas_of(other) == std::vector<int64_t>{5, 2, 1});
}

TEST_CASE("ResNet-50 on 8 devices: DynPipe's plan, which it recorded as PipeDream's") {
  if (testing::shared_data().empty()) return testing::skip("no published profiles here");
  DynPipeProblem problem = published("resnet50", 1.0 / 8, 1.0 / 8);
  const DynPipePlan best = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(best.seconds - 0.05895) < 5e-6);
  CHECK(layers_of(best) == std::vector<int64_t>{71, 50, 23, 32});
  CHECK(replicas_of(best) == std::vector<int64_t>{4, 2, 1, 1});
  problem.rule = DynPipeRule::kPipeDream;
  const DynPipePlan pipedream = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(pipedream.seconds - 0.05706) < 5e-6);
  CHECK(layers_of(pipedream) == std::vector<int64_t>{44, 24, 49, 27, 32});

  problem = published("resnet50", 1, 1);
  const DynPipePlan right = least_stale(search_dynpipe(problem), 0);
  CHECK(std::abs(right.seconds - 0.07957) < 5e-6);
  CHECK(layers_of(right) == std::vector<int64_t>{74, 47, 25, 30});
  problem.rule = DynPipeRule::kPipeDream;
  CHECK(std::abs(least_stale(search_dynpipe(problem), 0).seconds - 0.06039) < 5e-6);
}

TEST_CASE("stages cost more minibatches the more they are, as heavily as asked") {
  CHECK(staleness_factor(1, 0.5) == 1);
  CHECK(staleness_factor(3, 0) == 1);
  CHECK(staleness_factor(3, 0.5) == 14);
}

TEST_CASE("a search that would take hours is refused, one with fewer stages is not") {
  DynPipeProblem problem;
  problem.layers.assign(2000, {"l", 1, 1, 1});
  problem.devices = problem.most_stages = 256;
  CHECK(testing::error_of<InputError>([&] { search_dynpipe(problem); }).find("would take hours") !=
        std::string::npos);
}

TEST_CASE("of a profile, all values that are read behind a cut cross it") {
  Profile profile;
  profile.model = "fork";
  for (const auto& [name, inputs] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"a", {}}, {"b", {"a.out"}}, {"c", {"a.out", "b.out"}}}) {
    ProfiledNode node;
    node.name = node.layer = name;
    node.inputs = inputs;
    node.outputs = {{name + ".out", 100}};
    node.forward_seconds = 1;
    node.backward_input_seconds = 2;
    node.parameter_bytes = 8;
    profile.nodes.push_back(node);
  }
  const DynPipeProblem problem = dynpipe_problem(profile);
  REQUIRE(problem.layers.size() == 3);
  CHECK(problem.layers[0].activation_bytes == 100);
  CHECK(problem.layers[1].activation_bytes == 200);
  CHECK(problem.layers[1].seconds == 3);
  CHECK(problem.layers[1].parameter_bytes == 8);
}

}  // namespace pipewright

// decide=predict: slowdowns from what hosts say of their cores, one step for a step.
#include "runtime/job/predicted_speeds.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "graph/document.h"
#include "interference/core_features.h"
#include "runtime/job/interference.h"
#include "runtime/messages/rank_message.h"
#include "tests/runtime/job/waiting_predictor.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

// Two ranks with a node each; only the features count.
struct TwoRanks {
  Profile profile;
  Plan plan;
  TwoRanks() {
    for (const char* name : {"a", "b"}) {
      ProfiledNode node;
      node.name = name;
      node.forward_seconds = 0.001;
      node.parameter_bytes = 1000;
      profile.nodes.push_back(node);
      Stage stage;
      stage.nodes = {name};
      stage.ranks = {static_cast<int64_t>(plan.stages.size())};
      plan.stages.push_back(stage);
    }
    plan.world_size = 2;
  }
  RunNow now(const std::vector<double>& measured = {1, 1}) const {
    RunNow now{.minibatch = 0, .plan = plan, .first_plan = plan, .speeds = {}};
    for (const double slowdown : measured) now.speeds.push_back({.slowdown = slowdown});
    return now;
  }
  // Rank 1 has waited so long in these samples, rank 0 not at all.
  RunNow now(const std::vector<double>& waited, const std::vector<double>& measured) const {
    RunNow now = this->now(measured);
    now.cores.resize(2);
    for (const double seconds : waited) {
      now.cores[0].push_back(waiting_sample(0.01));
      now.cores[1].push_back(waiting_sample(seconds));
    }
    return now;
  }
};

}  // namespace

TEST_CASE("predicted: a rank is slow when five samples in a row say so, and no longer when five say that") {
  const TwoRanks ranks;
  PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
  CHECK(speeds.slowdowns(ranks.now()) == Slowdowns({1, 1}));
  CHECK(speeds.slowdowns(ranks.now({0.01, 0.02, 0, 0.01, 0.03}, {1, 1})) == Slowdowns({1, 1}));
  // What was measured is none of it.
  CHECK(speeds.slowdowns(ranks.now({2, 2, 2, 2}, {1, 7})) == Slowdowns({1, 1}));
  const auto slow = speeds.slowdowns(ranks.now({2}, {1, 1}));
  CHECK(slow.ranks[0] == 1);
  CHECK(slow.ranks[1] == Approx(3).epsilon(0.1));
  CHECK(slow.nodes.empty());  // this forest does not read what the work is like
  // Samples that differ a little are no step, and neither is one that differs much.
  for (const double waited : {1.9, 2.1, 0.01, 2.0, 1.8, 2.2, 1.95})
    CHECK(speeds.slowdowns(ranks.now({waited}, {1, 1})) == slow);
  CHECK(speeds.slowdowns(ranks.now({0.01, 0.01, 0.02, 0.01}, {1, 1})) == slow);
  CHECK(speeds.slowdowns(ranks.now({0.01}, {1, 1})) == Slowdowns({1, 1}));
}

TEST_CASE("predicted, invariant J: noise is no step in 20,000 samples, a step is one, and so is its end") {
  const TwoRanks ranks;
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> noise(0, 0.08);
    std::bernoulli_distribution outlier(0.02);
    PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
    std::vector<double> steps = {1};
    for (int i = 0; i < 2000; ++i) {
      const double level = i >= 800 && i < 1400 ? 2.0 : 0.1;
      const double waited = outlier(random) ? 2.5 : std::clamp(level + noise(random), 0.0, 3.0);
      const double now = speeds.slowdowns(ranks.now({waited}, {1, 1})).ranks[1];
      if (now != steps.back()) steps.push_back(now);
    }
    CAPTURE(seed, steps);
    REQUIRE(steps.size() == 3);
    CHECK(steps[1] == Approx(3).epsilon(0.12));
    CHECK(steps[2] < 1.2);
  }
}

TEST_CASE(
    "predicted: outside the range of the training data what was measured counts, until it is within again") {
  const TwoRanks ranks;
  PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
  CHECK(speeds.slowdowns(ranks.now({50, 50, 50, 50, 50}, {1, 8.5})) == Slowdowns({1, 8.5}));
  CHECK(speeds.slowdowns(ranks.now({50, 50}, {1, 9})) == Slowdowns({1, 9}));
  // One sample outside is none to bother about.
  CHECK(speeds.slowdowns(ranks.now({2, 2, 2, 2, 50}, {1, 9})).ranks[1] == Approx(3).epsilon(0.1));
  CHECK(speeds.slowdowns(ranks.now({2, 2, 2}, {1, 9})).ranks[1] == Approx(3).epsilon(0.1));
}

TEST_CASE("predicted: of a rank that is bound to no core what was measured counts") {
  const TwoRanks ranks;
  PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
  RunNow now = ranks.now({1, 4});
  now.cores = {{}, {CoreSample{}}};
  CHECK(speeds.slowdowns(now) == Slowdowns({1, 4}));
  CHECK(speeds.slowdowns(ranks.now({1, 5})) == Slowdowns({1, 5}));
}

TEST_CASE("predicted: another plan begins with new samples, as slow as before") {
  TwoRanks ranks;
  PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
  const auto slow = speeds.slowdowns(ranks.now({2, 2, 2, 2, 2}, {1, 1}));
  std::swap(ranks.plan.stages[0].nodes, ranks.plan.stages[1].nodes);
  CHECK(speeds.slowdowns(ranks.now({0.01, 0.01, 0.01, 0.01}, {1, 1})) == slow);
  CHECK(speeds.slowdowns(ranks.now({0.01}, {1, 1})) == Slowdowns({1, 1}));
}

TEST_CASE("predicted: work that goes through more memory is slower, node by node") {
  TwoRanks ranks;  // "a" and "b" are a part each, of 1 MB/s
  ranks.profile.nodes[0].parameter_bytes = 3000;
  InterferenceData data;
  data.features = {"waiting", "work_bytes_per_second"};
  for (int i = 0; i <= 300; ++i)
    for (const double megabytes : {0.5, 1.0, 3.0, 4.0})
      data.rows.push_back(
          {"matrix", 1, "w", {0.01 * i, megabytes * 1e6}, 1 + 0.01 * i * (megabytes > 2 ? 2 : 1)});
  PredictedSpeeds speeds(Predictor::train(data, {}), ranks.profile);
  CHECK(speeds.slowdowns(ranks.now({0, 0, 0, 0, 0}, {1, 1})) == Slowdowns({1, 1}));
  const Slowdowns slow = speeds.slowdowns(ranks.now({1, 1, 1, 1, 1}, {1, 1}));
  CHECK(slow.ranks[0] == 1);
  CHECK(slow.ranks[1] == Approx(2).epsilon(0.1));
  REQUIRE(slow.nodes.size() == 1);
  REQUIRE(slow.nodes.count(1) == 1);
  CHECK(slow.nodes.at(1)[0] == Approx(3).epsilon(0.1));  // would be, if it had "a"
  CHECK(slow.nodes.at(1)[1] == slow.ranks[1]);
  CHECK(speeds.slowdowns(ranks.now({0, 0, 0, 0, 0}, {1, 1})) == Slowdowns({1, 1}));
}

TEST_CASE("predicted: what was measured while the forest knew nothing is what the next plan begins with") {
  TwoRanks ranks;
  PredictedSpeeds speeds(waiting_predictor(), ranks.profile);
  CHECK(speeds.slowdowns(ranks.now({2, 2, 2, 2, 2}, {1, 1})).ranks[1] == Approx(3).epsilon(0.1));
  CHECK(speeds.slowdowns(ranks.now({50, 50, 50, 50, 50}, {1, 1.5})) == Slowdowns({1, 1.5}));
  std::swap(ranks.plan.stages[0].nodes, ranks.plan.stages[1].nodes);
  CHECK(speeds.slowdowns(ranks.now({0.01, 0.01}, {1, 1.5})) == Slowdowns({1, 1.5}));
}

TEST_CASE("predicted: a forest of other features is refused") {
  const TwoRanks ranks;
  InterferenceData data;
  data.features = {"SM Active [Throughput %]"};
  for (int i = 0; i < 20; ++i) data.rows.push_back({"stretch 1", 0, "", {1.0 * i}, 1 + 0.1 * i});
  const std::string refused =
      error_of<InputError>([&] { PredictedSpeeds(Predictor::train(data, {}), ranks.profile); });
  CHECK_THAT(refused, Contains("\"SM Active [Throughput %]\"") && Contains("waiting"));
}

TEST_CASE("of the samples of a core only the last ones are kept") {
  CoreSamples samples(2);
  for (int i = 0; i < 40; ++i) samples.take(1, waiting_sample(i));
  const auto all = samples.take_all();
  REQUIRE(all.size() == 2);
  CHECK(all[0].empty());
  REQUIRE(all[1].size() == CoreSamples::kMost);
  CHECK(text_of(all[1].back()) == text_of(waiting_sample(39)));
  CHECK(samples.take_all()[1].empty());
}

TEST_CASE("interference:decide=predict reads a predictor, others do not") {
  const TemporaryFolder folder;
  Profile profile = TwoRanks().profile;
  profile.model = "m";
  profile.device = "cpu";
  const std::string p = folder / "profile.json", f = folder / "predictor.json";
  write_document(p, profile);
  write_document(f, waiting_predictor());
  const auto policy = make_adapt_policy("interference:decide=predict,profile=" + p + ",model=" + f);
  CHECK(policy->reads_cores());
  CHECK_FALSE(make_adapt_policy("interference:profile=" + p)->reads_cores());
  const auto refusal = [](const std::string& adapt) {
    return error_of<InputError>([&] { make_adapt_policy(adapt); });
  };
  CHECK_THAT(refusal("interference:decide=predict,profile=" + p), Contains("model") && Contains("missing"));
  CHECK_THAT(refusal("interference:profile=" + p + ",model=" + f), Contains("model"));
  CHECK_THAT(refusal("interference:decide=predict,profile=" + p + ",model=" + p),
             Contains("pipewright.predictor/1"));
}

TEST_CASE(
    "predicted: a GPU's forest judges a rank that is bound to no core by its GPU, a core's forest does not") {
  const TwoRanks ranks;
  InterferenceData data;
  data.features = {"gpu_others"};
  for (int i = 0; i <= 300; ++i) data.rows.push_back({"matrix", 1, "w", {i / 300.0}, 1 + 0.01 * i});
  CoreReading first, second;
  first.at_seconds = 1;
  second.at_seconds = 2;
  second.gpu.others = 0.5;
  const CoreSample sample{core_features(first, second, /*core=*/std::nullopt)};
  RunNow now = ranks.now({1, 7});
  now.cores = {std::vector<CoreSample>(5, waiting_sample(0.01)), std::vector<CoreSample>(5, sample)};
  PredictedSpeeds by_gpu(Predictor::train(data, {}), ranks.profile),
      by_core(waiting_predictor(), ranks.profile);
  CHECK(by_gpu.slowdowns(now).ranks[1] == Approx(2.5).epsilon(0.1));
  CHECK(by_core.slowdowns(now).ranks[1] == 7);
}

}  // namespace pipewright::testing

#include "runtime/job/freeze_rules.h"

#include <catch2/catch.hpp>
#include <random>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/plan_changes.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/job/freeze_policy.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

std::unique_ptr<FreezeRule> rule(const std::string& name, const std::string& text) {
  SpecOptions options(parse_spec(text, "adapt"));
  for (const FreezeRuleRow& row : freeze_rules())
    if (name == row.name) return row.make(options);
  return nullptr;
}

TEST_CASE("freezing by alpha: PipeTransformer's table of twelve layers") {
  const auto row = [](double alpha, int64_t epochs) {
    std::vector<int64_t> frozen;
    for (int64_t t = 0; t < epochs; ++t) frozen.push_back(layers_frozen_by_alpha(12, alpha, t));
    return frozen;
  };
  CHECK(row(1.0 / 5, 10) == std::vector<int64_t>{0, 3, 5, 6, 8, 9, 9, 10, 10, 11});
  CHECK(row(1.0 / 4, 10) == std::vector<int64_t>{0, 3, 6, 7, 9, 10, 10, 11, 11, 12});
  CHECK(row(1.0 / 3, 10) == std::vector<int64_t>{0, 4, 7, 9, 10, 11, 11, 12, 12, 12});
  CHECK(row(2.0 / 5, 6) == std::vector<int64_t>{0, 5, 8, 10, 11, 12});
  CHECK(row(1.0 / 2, 5) == std::vector<int64_t>{0, 6, 9, 11, 12});
}

TEST_CASE("whatever a rule sees, what is frozen stays so, and there are no more layers than there are") {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> share(0, 1);
  for (int round = 0; round < 300; ++round) {
    for (const FreezeRuleRow& row : freeze_rules()) {
      const std::string name = row.name;
      std::string text = "freeze:rule=" + name;
      if (name == "alpha" || name == "bounded") text += ",alpha=" + std::to_string(share(random));
      if (name == "gradient") text += ",percentile=" + std::to_string(100 * share(random));
      const auto made = rule(name, text);
      FreezeNow now;
      now.layers = std::uniform_int_distribution<int64_t>(1, 30)(random);
      for (now.intervals = 1; now.intervals < 12; ++now.intervals) {
        now.norms_before = now.norms;
        now.norms.assign(static_cast<size_t>(now.layers), 0);
        for (int64_t l = now.frozen; l < now.layers; ++l)
          now.norms[static_cast<size_t>(l)] = std::exp(5 * share(random));
        const int64_t frozen = made->frozen_after(now);
        INFO(text << " " << now.intervals);
        CHECK(frozen >= now.frozen);
        CHECK(frozen <= now.layers);
        now.frozen = frozen;
      }
    }
  }
}

TEST_CASE("freezing by gradients that settle: those in front of the first that still changes") {
  const auto gradient = rule("gradient", "freeze:rule=gradient,percentile=50");
  FreezeNow now{1, 4, 0, {1, 2, 3, 4}, {}};
  CHECK(gradient->frozen_after(now) == 0);  // nothing to compare with
  // Changes of 1 %, 2 %, 50 %, 60 %: the median, the lower of the two, is 2 %.
  now = {2, 4, 0, {0.99, 1.96, 1.5, 1.6}, {1, 2, 3, 4}};
  CHECK(gradient->frozen_after(now) == 2);
  now = {2, 4, 0, {0.5, 1.96, 2.97, 4}, {1, 2, 3, 4}};  // the first layer changes most
  CHECK(gradient->frozen_after(now) == 0);
  now = {3, 4, 2, {0, 0, 1.49, 0.8}, {0, 0, 1.5, 1.6}};
  CHECK(gradient->frozen_after(now) == 3);
}

TEST_CASE(
    "freezing as published: by alpha, but none behind the layer with the smallest gradient, from the second "
    "time on") {
  const auto bounded = rule("bounded", "freeze:rule=bounded,alpha=0.5");
  CHECK(bounded->frozen_after({1, 8, 0, {1, 2, 3, 4, 5, 6, 7, 8}, {}}) == 0);
  CHECK(bounded->frozen_after({2, 8, 0, {8, 7, 6, 5, 4, 3, 2, 1}, {}}) == 4);
  CHECK(bounded->frozen_after({2, 8, 0, {8, 1, 6, 5, 4, 3, 2, 2}, {}}) == 2);
  CHECK(bounded->frozen_after({3, 8, 4, {0, 0, 0, 0, 4, 3, 2, 1}, {}}) == 6);
  CHECK(bounded->frozen_after({3, 8, 4, {0, 0, 0, 0, 1, 3, 2, 1.5}, {}}) == 5);
}

TEST_CASE("points of a manual freeze are read strictly") {
  const SpecOptions options(parse_spec("freeze:rule=manual", "adapt"));
  const std::vector<std::pair<int64_t, int64_t>> points = {{400, 3}, {800, 6}};
  CHECK(parse_freeze_points("3@400+6@800", options) == points);
  for (const char* bad :
       {"", "3", "3@", "@4", "3@0", "-1@4", "3@4+", "3@400+2@800", "3@400+4@400", "3 @400"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_freeze_points(bad, options), InputError);
  }
  CHECK_THROWS_WITH(make_adapt_policy("freeze:rule=alpa"), Catch::Contains("alpha"));
  CHECK_THROWS_WITH(make_adapt_policy("freeze:rule=alpha,percentile=3"), Catch::Contains("percentile"));
  CHECK_THROWS_WITH(make_adapt_policy("freeze:rule=manual,at=3@400,profile=p.json"),
                    Catch::Contains("profile: does not go with rule=manual, under which the plan stays"));
}

TEST_CASE("a change may say a plan, layers to freeze, or what an update takes") {
  const std::string text = R"([{"minibatch": 4, "freeze": 2}, {"minibatch": 8, "plan": "b.json", "freeze": 2},
    {"minibatch": 9, "gradient_accumulation": 2, "learning_rate_scale": 2.5}])";
  const auto changes = parse_plan_changes(text, "c.json");
  REQUIRE(changes.size() == 3);
  CHECK(changes[0].plan.empty());
  CHECK(changes[0].freeze == 2);
  CHECK(changes[1].plan == "b.json");
  CHECK(changes[2].gradient_accumulation == 2);
  CHECK(changes[2].learning_rate_scale == 2.5);
  const auto again = parse_plan_changes(plan_changes_text(changes), "again");
  CHECK(plan_changes_text(again) == plan_changes_text(changes));
  CHECK_THROWS_WITH(
      parse_plan_changes(R"([{"minibatch": 4, "freeze": 2}, {"minibatch": 8, "freeze": 1}])", "c.json"),
      Catch::Contains("a layer that is frozen stays so"));
  CHECK_THROWS_AS(parse_plan_changes(R"([{"minibatch": 4}])", "c.json"), InputError);
  CHECK_THROWS_WITH(parse_plan_changes(R"([{"minibatch": 4, "freze": 1}])", "c.json"),
                    Catch::Contains("freeze"));
}

// Eight blocks of 3 ms and a head, all values small.
Profile blocks() {
  Profile profile;
  profile.model = "blocks";
  profile.device = "none";
  profile.minibatch_samples = 8;
  for (int v = 0; v < 9; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = v < 8 ? "blocks." + std::to_string(v) : "head";
    node.inputs = {v == 0 ? "images" : "n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", 8000}};
    node.forward_seconds = node.backward_input_seconds = node.backward_weight_seconds = 0.001;
    node.parameter_bytes = node.trainable_parameter_bytes = 100'000;
    node.parameters = {node.name + ".weight"};
    profile.nodes.push_back(node);
  }
  return profile;
}

DrainedNow drained(const Plan& plan, int64_t ranks, std::optional<CacheRules> cache) {
  DrainedNow now{.minibatch = 100, .plan = plan, .ranks = ranks, .layers = {}, .gradient_norms = {}};
  now.minibatches_left = 100'000;
  now.minibatches_per_epoch = 100;
  now.layers.resize(8);
  now.cache = std::move(cache);
  now.samples = 1000;
  return now;
}

TEST_CASE(
    "the plan that follows takes what is kept for nothing, if the budget holds the values of all samples") {
  const testing::TemporaryFolder folder;
  write_document(folder / "profile.json", blocks());
  const std::string spec =
      "freeze:rule=alpha,alpha=0.5,bandwidth=1GB/s,profile=" + (folder / "profile.json").string();
  const auto policy = make_adapt_policy(spec);
  PlanRequest request;
  request.strategy = "straight";
  const Plan plan = make_plan(blocks(), flat_topology(2, 1e9, 20e-6, 0), request);
  const auto seconds = [&](std::optional<CacheRules> cache) {
    const auto decision = policy->decide_drained(drained(plan, 2, std::move(cache)));
    REQUIRE(decision);
    CHECK(decision->freeze == 4);
    REQUIRE(decision->plan.predicted);
    return decision->plan.predicted->minibatch_seconds;
  };
  CacheRules rules;
  rules.kind = CacheKind::kMemory;
  const double computed = seconds(std::nullopt), kept = seconds(rules);
  CHECK(kept < computed);
  rules.memory_bytes = 900'000;  // of 1000 samples with 1000 bytes each
  CHECK(seconds(rules) == computed);
  rules.dtype = "bfloat16";
  CHECK(seconds(rules) == kept);

  const auto halving = make_adapt_policy(spec + ",compat=halving");
  const auto decision = halving->decide_drained(drained(plan, 2, std::nullopt));
  REQUIRE(decision);
  CHECK(decision->plan.schedule == "gpipe");
  CHECK(decision->plan.world_size == 2);
}

TEST_CASE("rules by gradients decide nothing within an interval of which they have seen a part") {
  const auto policy = make_adapt_policy("freeze:rule=bounded,alpha=0.5");
  const Plan plan;
  DrainedNow now = drained(plan, 1, std::nullopt);
  now.minibatch = 300;
  now.gradient_norms = {1, 1, 1, 1, 0.5, 1, 1, 1};
  now.norms_are_whole = false;
  CHECK_FALSE(policy->decide_drained(now));
  now.norms_are_whole = true;
  const auto decision = policy->decide_drained(now);
  REQUIRE(decision);
  CHECK(decision->freeze == 4);
}

}  // namespace
}  // namespace pipewright

#include "graph/delay_corrections.h"

#include <catch2/catch.hpp>

#include "graph/error.h"
#include "graph/update_rules.h"

using namespace pipewright;

TEST_CASE("corrections of delays: what a plan or a sync cannot have is refused, naming what goes") {
  UpdateSettings settings;
  for (const WeightRuleFacts& rule : weight_rules()) check_delay_correction(settings, rule.rule);
  settings.optimizer.delay_correction = GENERATE("error-feedback", "dc", "pipemare-t1");
  const bool older = settings.optimizer.delay_correction == "pipemare-t1";
  CHECK_THROWS_WITH(check_delay_correction(settings, WeightRule::kFlush),
                    Catch::Contains("there is no delay"));
  for (const WeightRule rule : {WeightRule::kStash, WeightRule::kVertical, WeightRule::kTwoVersions}) {
    if (older != (rule == WeightRule::kTwoVersions))
      check_delay_correction(settings, rule);
    else if (older)
      CHECK_THROWS_WITH(check_delay_correction(settings, rule), Catch::Contains("changes nothing"));
    else
      CHECK_THROWS_WITH(check_delay_correction(settings, rule), Catch::Contains("stages of other delays"));
  }
  CHECK_THROWS_WITH(check_delay_correction(settings, WeightRule::kPaci),
                    Catch::Contains("a backward reads another one than its forward"));
  settings.sync = "none";
  CHECK_THROWS_WITH(check_delay_correction(settings, WeightRule::kTwoVersions),
                    Catch::Contains("sync 'none'"));
}

TEST_CASE("predict: what an update rule has no form of is refused, naming what has one") {
  OptimizerSettings settings;
  settings.name = "lion";
  check_prediction(settings, WeightRule::kPaci);
  CHECK_THROWS_WITH(
      check_prediction(settings, WeightRule::kPredict),
      "the plan's weights 'predict' are predicted by the optimizer, and 'lion' has no form of it");
  settings.name = "sgd";
  CHECK_THROWS_WITH(check_prediction(settings, WeightRule::kPredict), Catch::Contains("without momentum"));
  settings.momentum = 0.9;
  check_prediction(settings, WeightRule::kPredict);
  settings.momentum = 0;
  settings.name = GENERATE("adam", "adamw");
  check_prediction(settings, WeightRule::kPredict);
}

TEST_CASE("corrections of delays: a tensor more for each weight, of its shape, also of muon's matrices") {
  OptimizerSettings settings;
  settings.name = "muon";
  settings.delay_correction = "dc";
  CHECK(slot_names(settings) == std::vector<std::string>{"exp_avg", "exp_avg_sq", "last_change"});
  CHECK(slot_shape(settings, 1, "weight", {3, 4}) == std::vector<int64_t>{0});
  CHECK(slot_shape(settings, 2, "weight", {3, 4}) == std::vector<int64_t>{3, 4});
  settings.name = "sgd";
  settings.delay_correction = "error-feedback";
  CHECK(slot_names(settings) == std::vector<std::string>{"previous_update"});
  settings.delay_correction = "pipemare-t1";
  CHECK(slot_names(settings).empty());
}

TEST_CASE("pipemare-t1: the rate is divided by the delay at first, by nothing in the end") {
  UpdateSettings settings;
  CHECK(rate_factor_of_delay(settings, 400, 0, 4) == 1);
  settings.optimizer.delay_correction = "pipemare-t1";
  CHECK(rate_factor_of_delay(settings, 400, 0, 4) == Approx(0.25));
  CHECK(rate_factor_of_delay(settings, 400, 50, 4) == Approx(0.5));
  CHECK(rate_factor_of_delay(settings, 400, 100, 4) == 1);
  CHECK(rate_factor_of_delay(settings, 400, 399, 4) == 1);
  for (const int64_t delay : {0, 1}) CHECK(rate_factor_of_delay(settings, 400, 0, delay) == 1);
  settings.learning_rate_policy.warmup_minibatches = 10;
  CHECK(rate_factor_of_delay(settings, 400, 25, 4) == Approx(0.5));
}

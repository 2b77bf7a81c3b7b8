// Learning rates against lists of numbers that PyTorch's own schedulers print, and what is refused or
// remarked.
#include "graph/learning_rate.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "graph/error.h"

namespace pipewright {
namespace {

LearningRateSettings settings_of(const std::string& name, double base = 0.1, int64_t total = 12) {
  LearningRateSettings settings{{}, base, /*minibatches_per_epoch=*/4, total};
  settings.policy.name = name;
  if (name == "milestones") settings.policy.milestones = "3,6";
  return settings;
}

void check_rates(const LearningRateSettings& settings, const std::vector<double>& expected) {
  for (size_t k = 0; k < expected.size(); ++k) {
    INFO(settings.policy.name << ", minibatch " << k);
    CHECK(learning_rate_at(settings, static_cast<int64_t>(k)) ==
          Approx(expected[k]).epsilon(1e-4).margin(1e-9));
  }
}

std::string refused(const std::string& name, const std::function<void(LearningRatePolicy&)>& change) {
  LearningRateSettings settings = settings_of(name);
  change(settings.policy);
  try {
    check_learning_rate(settings.policy, settings.base, "run.json");
  } catch (const InputError& error) {
    return error.what() + (error.remedy().empty() ? std::string() : "|" + error.remedy());
  }
  return "taken";
}

TEST_CASE("the decay begins where the warm-up ends, as transformers' get_cosine_schedule_with_warmup") {
  LearningRateSettings settings = settings_of("cosine");
  settings.policy.warmup_minibatches = 4;
  check_rates(settings, {0.025, 0.05, 0.075, 0.1, 0.1, 0.0961940, 0.0853553, 0.0691342, 0.05, 0.0308658,
                         0.0146447, 0.00380602, 0});
  settings.policy.name = "polynomial";
  settings.policy.power = 1;
  check_rates(settings,
              {0.025, 0.05, 0.075, 0.1, 0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125, 0});
  settings.policy.name = "exponential";
  settings.policy.gamma = 0.0625;
  check_rates(settings, {0.025, 0.05, 0.075, 0.1, 0.1, 0.0707107, 0.05, 0.0353553, 0.025});
  settings.policy.name = "step";
  settings.policy.gamma = 0.1;
  settings.policy.step_minibatches = 3;
  check_rates(settings, {0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001});
  settings.policy.step_minibatches = 0;
  settings.policy.step_epochs = 0.5;
  check_rates(settings, {0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001});
}

TEST_CASE("a constant part, a decay length of its own, and a lowest rate") {
  // torch: CosineAnnealingLR(T_max=4, eta_min=0.02) behind two constant minibatches.
  LearningRateSettings settings = settings_of("cosine");
  settings.policy.constant_minibatches = 2;
  settings.policy.decay_minibatches = 4;
  settings.policy.lowest_learning_rate = 0.02;
  check_rates(settings, {0.1, 0.1, 0.1, 0.0882843, 0.06, 0.0317157, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02});
  settings.policy.warmup_minibatches = 2;
  check_rates(settings, {0.05, 0.1, 0.1, 0.1, 0.1, 0.0882843, 0.06, 0.0317157, 0.02, 0.02});
  // What has a factor of its own is cut off at the lowest rate.
  settings.policy.name = "exponential";
  settings.policy.gamma = 0.0625;
  check_rates(settings, {0.05, 0.1, 0.1, 0.1, 0.1, 0.05, 0.025, 0.02, 0.02});
}

TEST_CASE("milestones are minibatches of the run, as torch's MultiStepLR") {
  LearningRateSettings settings = settings_of("milestones");
  check_rates(settings, {0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001});
  settings.policy.warmup_minibatches = 2;
  settings.policy.gamma = 0.5;
  settings.policy.lowest_learning_rate = 0.03;
  check_rates(settings, {0.05, 0.1, 0.1, 0.05, 0.05, 0.05, 0.03, 0.03});
  settings.policy.every = "epoch";
  check_rates(settings, {0.05, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.03, 0.03});
}

TEST_CASE("every epoch: the rate is that of the epoch's first minibatch, behind the warm-up") {
  LearningRateSettings settings = settings_of("cosine");
  settings.policy.every = "epoch";
  settings.policy.warmup_minibatches = 2;
  settings.policy.decay_minibatches = 8;
  check_rates(settings, {0.05, 0.1, 0.1, 0.1, 0.0853553, 0.0853553, 0.0853553, 0.0853553, 0.0146447});
  LearningRateSettings step = settings_of("step", 1, 100);
  step.policy.step_minibatches = 7;
  CHECK(learning_rate_at(step, 13) == Approx(0.1));
  CHECK(learning_rate_at(step, 14) == Approx(0.01));
  step.policy.every = "epoch";
  CHECK(learning_rate_at(step, 15) == Approx(0.1));
  CHECK(learning_rate_at(step, 16) == Approx(0.01));
}

TEST_CASE("without a warm-up policies are what they were") {
  LearningRateSettings settings = settings_of("constant", 0.5, 100);
  settings.minibatches_per_epoch = 10;
  CHECK(learning_rate_at(settings, 123) == 0.5);
  settings.policy.warmup_minibatches = 4;
  CHECK(learning_rate_at(settings, 0) == Approx(0.125));
  CHECK(learning_rate_at(settings, 3) == Approx(0.5));
  settings.policy.warmup_minibatches = 0;
  settings.base = 1;
  settings.policy.name = "step";
  settings.policy.step_epochs = 2;
  CHECK(learning_rate_at(settings, 19) == Approx(1));
  CHECK(learning_rate_at(settings, 20) == Approx(0.1));
  settings.policy.name = "polynomial";
  CHECK(learning_rate_at(settings, 50) == Approx(0.25));
  settings.policy.name = "cosine";
  CHECK(learning_rate_at(settings, 50) == Approx(0.5));
  settings.policy.name = "exponential";
  CHECK(learning_rate_at(settings, 100) == Approx(0.1));
}

TEST_CASE("whatever the settings, rates stay between the lowest and the base, and fall") {
  for (const LearningRateRow& row : learning_rate_policies()) {
    for (const int64_t warmup : {0, 3, 20})
      for (const int64_t constant : {0, 2, 20})
        for (const int64_t decay : {0, 1, 5, 40}) {
          LearningRateSettings settings = settings_of(row.name);
          settings.policy.warmup_minibatches = warmup;
          settings.policy.constant_minibatches = row.begins ? constant : 0;
          settings.policy.decay_minibatches = row.has_end ? decay : 0;
          settings.policy.step_minibatches = 3;
          settings.policy.lowest_learning_rate = 0.004;
          double before = settings.base;
          for (int64_t k = warmup; k < 60; ++k) {
            const double rate = learning_rate_at(settings, k);
            CHECK((std::isfinite(rate) && rate <= before && rate >= 0.004));
            before = rate;
          }
        }
  }
}

TEST_CASE("settings that a policy does not take are refused") {
  CHECK(refused("cosine", [](auto& p) { p.lowest_learning_rate = 0.01; }) == "taken");
  CHECK(refused("cosine", [](auto& p) { p.lowest_learning_rate = 0.2; }) ==
        "run.json: learning_rate_policy.lowest_learning_rate: 0.2 is above the learning rate, 0.1");
  CHECK(refused("constant", [](auto& p) { p.lowest_learning_rate = 0.01; }) ==
        "run.json: learning_rate_policy.lowest_learning_rate: the policy 'constant' does not take it|"
        "Give --learning-rate-policy step or milestones or polynomial or exponential or cosine, or leave it "
        "out.");
  CHECK(refused("step", [](auto& p) { p.decay_minibatches = 5; }) ==
        "run.json: learning_rate_policy.decay_minibatches: the policy 'step' does not take it|"
        "Give --learning-rate-policy polynomial or exponential or cosine, or leave it out.");
  CHECK(refused("milestones", [](auto& p) { p.constant_minibatches = 5; }) ==
        "run.json: learning_rate_policy.constant_minibatches: the policy 'milestones' does not take it|"
        "Give --learning-rate-policy step or polynomial or exponential or cosine, or leave it out.");
  CHECK(refused("cosine", [](auto& p) { p.milestones = "3,6"; }) ==
        "run.json: learning_rate_policy.milestones: the policy 'cosine' does not take it|"
        "Give --learning-rate-policy milestones, or leave it out.");
  CHECK(refused("milestones", [](auto& p) { p.milestones = ""; }) ==
        "run.json: learning_rate_policy.milestones: the policy 'milestones' has none|Give --milestones, as "
        "3000,6000.");
  CHECK(refused("milestones", [](auto& p) { p.warmup_minibatches = 4; }) ==
        "run.json: learning_rate_policy.milestones: 3 lies within the warm-up of 4 minibatches|"
        "Milestones are minibatches of the run, counted from its beginning.");
  for (const char* text :
       {"6,3", "3,3", "0", "-1", "3,", ",3", "3,,6", "3;6", "3.5", "a", "3, 6", "99999999999999999999"}) {
    INFO(text);
    CHECK(refused("milestones", [&](auto& p) {
            p.milestones = text;
          }).rfind("run.json: learning_rate_policy.milestones: got '" + std::string(text) + "'", 0) == 0);
  }
  CHECK(refused("milestones", [](auto& p) { p.milestones = "6,3"; }) ==
        "run.json: learning_rate_policy.milestones: got '6,3': 3 is not above 6; expected minibatches that "
        "rise, as "
        "3000,6000");
}

TEST_CASE("what the run ends before is remarked") {
  const auto remark = [](const std::string& name, const std::function<void(LearningRatePolicy&)>& change) {
    LearningRateSettings settings = settings_of(name);
    change(settings.policy);
    const auto remarks = learning_rate_remarks(settings);
    CHECK(remarks.size() <= 1);
    return remarks.empty() ? "" : remarks.front();
  };
  for (const LearningRateRow& row : learning_rate_policies()) CHECK(remark(row.name, [](auto&) {}).empty());
  CHECK(remark("constant", [](auto& p) { p.warmup_minibatches = 12; }).empty());
  CHECK(remark("cosine", [](auto& p) { p.warmup_minibatches = 48; }) ==
        "the warm-up of 48 minibatches is longer than the run of 12 minibatches: the rate ends at 0.025 of "
        "0.1");
  CHECK(remark("cosine", [](auto& p) { p.constant_minibatches = 12; }) ==
        "the policy 'cosine' begins at minibatch 12, behind the run of 12 minibatches");
  CHECK(remark("cosine", [](auto& p) { p.decay_minibatches = 12; }).empty());
  CHECK(remark("cosine", [](auto& p) { p.decay_minibatches = 22; }) ==
        "the decay of 22 minibatches from minibatch 0 on is longer than the run of 12 minibatches: the rate "
        "ends at "
        "0.05 of 0.1");
  CHECK(remark("milestones", [](auto& p) { p.milestones = "3,12"; }) ==
        "the milestone 12 lies behind the run of 12 minibatches");
}

TEST_CASE("a run that goes on with another length says which rates change") {
  LearningRateSettings settings = settings_of("cosine", 0.1, 16);
  CHECK(changed_rate_text(settings, 8, 8) ==
        "from minibatch 8 on 0.05, behind 0.00381: the policy 'cosine' ends with the run, which has 16 "
        "minibatches "
        "now and had 8; --decay-minibatches 8 keeps the rates it had");
  CHECK(changed_rate_text(settings, 16, 8).empty());
  settings.policy.warmup_minibatches = 4;
  CHECK(changed_rate_text(settings, 12, 2) ==
        "from minibatch 5 on 0.0983, behind 0.1: the policy 'cosine' ends with the run, which has 16 "
        "minibatches now "
        "and had 12; --decay-minibatches 8 keeps the rates it had");
  settings.policy.decay_minibatches = 8;
  CHECK(changed_rate_text(settings, 12, 2).empty());
  CHECK(changed_rate_text(settings_of("step", 0.1, 16), 8, 8).empty());
  CHECK(changed_rate_text(settings_of("constant", 0.1, 16), 8, 8).empty());
}

}  // namespace
}  // namespace pipewright

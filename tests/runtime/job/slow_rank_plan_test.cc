// The policy `slow`: when the plan that is kept ready takes over, and when the first one comes back, to the
// minibatch. Speeds are what a rank's monitor makes of times that no machine has measured.
#include "runtime/job/slow_rank_plan.h"

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

Plan plan_of_depth(int64_t in_flight) {
  Plan plan;
  plan.model = "chain";
  plan.strategy = "manual";
  plan.world_size = 2;
  for (int64_t rank : {0, 1}) {
    Stage stage;
    stage.nodes = {"n" + std::to_string(rank)};
    stage.ranks = {rank};
    stage.in_flight = in_flight;
    plan.stages.push_back(stage);
  }
  return plan;
}

// A run of two ranks that changes its plan as soon as it is told to.
class Run {
 public:
  explicit Run(std::optional<int64_t> rank) : policy_("ready.json", ready_, rank, 2) {}

  /// What is decided before the next minibatches, on each of which the ranks compute so long.
  std::vector<std::pair<int64_t, PlanDecision>> train(int64_t minibatches, std::vector<double> seconds) {
    std::vector<std::pair<int64_t, PlanDecision>> decided;
    for (const int64_t end = minibatch_ + minibatches; minibatch_ < end; ++minibatch_) {
      if (auto decision = decide()) {
        in_force_ = decision->plan;
        for (RankMonitor& monitor : monitors_) monitor.plan_changed();
        decided.emplace_back(minibatch_, *decision);
      }
      for (size_t rank = 0; rank < 2; ++rank)
        for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward})
          if (const auto change = monitors_[rank].ran({kind, minibatch_}, seconds[rank] / 2))
            speeds_[rank] = *change;
    }
    return decided;
  }
  void resume_under_ready() { in_force_ = ready_; }

  const Plan first = plan_of_depth(1);
  const Plan ready_ = plan_of_depth(2);

 private:
  std::optional<PlanDecision> decide() {
    return policy_.decide(
        {.minibatch = minibatch_, .plan = in_force_, .first_plan = first, .speeds = speeds_});
  }

  Plan in_force_ = first;
  SlowRankPlan policy_;
  int64_t minibatch_ = 0;
  std::vector<RankMonitor> monitors_ = std::vector<RankMonitor>(2);
  std::vector<SpeedChange> speeds_ = std::vector<SpeedChange>(2);
};

}  // namespace

TEST_CASE(
    "slow: the plan that is kept ready takes over within 20 minibatches, and the first one comes back") {
  for (const std::optional<int64_t> rank : {std::optional<int64_t>(1), std::optional<int64_t>()}) {
    Run run(rank);
    // A minibatch is a sample.
    CHECK(run.train(100, {0.06, 0.06}).empty());
    CHECK(run.train(100, {0.06, 0.1}).empty());  // slower, and not as slow as that
    const auto slow = run.train(100, {0.06, 0.36});
    REQUIRE(slow.size() == 1);
    CHECK(slow[0].first > 200);
    CHECK(slow[0].first <= 220);
    CHECK(document_digest(slow[0].second.plan) == document_digest(run.ready_));
    CHECK(slow[0].second.file == "ready.json");
    CHECK(slow[0].second.reason == "slow: rank 1 computes 6 times as long as when quiet");
    const auto quiet = run.train(100, {0.06, 0.06});
    REQUIRE(quiet.size() == 1);
    CHECK(quiet[0].first > 300);
    CHECK(quiet[0].first <= 320);
    CHECK(document_digest(quiet[0].second.plan) == document_digest(run.first));
    CHECK(quiet[0].second.reason == "slow: no rank is any more");
    CHECK(run.train(100, {0.06, 0.06}).empty());
  }
}

TEST_CASE("slow: of ranks that were not asked about none changes the plan") {
  Run run(0);
  CHECK(run.train(100, {0.06, 0.06}).empty());
  CHECK(run.train(100, {0.06, 0.36}).empty());
  const auto slow = run.train(100, {0.24, 0.36});
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].second.reason == "slow: rank 0 computes 4 times as long as when quiet");
}

TEST_CASE("slow: a run that goes on under the plan that is kept ready goes back when no rank is slow") {
  Run run(1);
  run.resume_under_ready();
  const auto quiet = run.train(10, {0.06, 0.06});
  REQUIRE(quiet.size() == 1);
  CHECK(quiet[0].first == 0);
  CHECK(document_digest(quiet[0].second.plan) == document_digest(run.first));
}

TEST_CASE("slow: its options are read strictly") {
  const TemporaryFolder folder;
  write_document(folder / "plan.json", plan_of_depth(1));
  const std::string plan = (folder / "plan.json").string();
  const auto refusal = [](const std::string& adapt) {
    return error_of<InputError>([&] { make_adapt_policy(adapt); });
  };
  CHECK_NOTHROW(make_adapt_policy("slow:plan=" + plan + ",rank=1,factor=3"));
  CHECK_THAT(refusal("slow"), Catch::Contains("plan") && Catch::Contains("missing"));
  CHECK_THAT(refusal("slow:plan=" + plan + ",factor=1"), Catch::Contains("factor"));
  CHECK_THAT(refusal("slow:plan=" + plan + ",ranks=1"), Catch::Contains("did you mean 'rank'?"));
  CHECK_THAT(refusal("slow:plan=nowhere.json"), Catch::Contains("nowhere.json"));
}

}  // namespace pipewright::testing

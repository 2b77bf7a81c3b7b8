#include "runtime/journal/slowness.h"

#include <catch2/catch.hpp>
#include <random>

using namespace pipewright;

namespace {

Plan plan_of(int64_t ranks, double compute_seconds) {
  Plan plan;
  plan.world_size = ranks;
  plan.predicted.emplace();
  for (int64_t r = 0; r < ranks; ++r) {
    Stage stage;
    stage.ranks = {r};
    plan.stages.push_back(stage);
    StagePrediction predicted;
    predicted.compute_seconds = compute_seconds;
    predicted.step_seconds = 0.001;
    predicted.gradient_sync_seconds = 0.001;
    plan.predicted->stages.push_back(predicted);
  }
  return plan;
}

// 100 minibatches as planned: 10 ms of compute, 1 ms of update, 1 ms of summing each.
Summary run_of(int64_t ranks) {
  Summary summary;
  summary.world_size = ranks;
  summary.cores = 8;
  summary.predicted_minibatch_seconds = 0.012;
  summary.minibatch_seconds = 0.012;
  for (int64_t r = 0; r < ranks; ++r) {
    RankSummary rank;
    rank.rank = r;
    rank.stage = r;
    rank.host = "node";
    rank.sync_wait_seconds = 0.1;
    rank.times = MeasuredTimes{100, 1.2, 1.1, 0, 1.1};
    summary.ranks.push_back(rank);
  }
  return summary;
}

}  // namespace

TEST_CASE("a run that is as fast as its plan, or has none, is told nothing") {
  Summary summary = run_of(2);
  const Plan plan = plan_of(2, 0.010);
  CHECK(slowness_text(summary, plan).empty());
  summary.minibatch_seconds = 1.19 * 0.012;
  CHECK(slowness_text(summary, plan).empty());
  summary.minibatch_seconds = 0.12;
  CHECK(slowness_text(summary, Plan{}).empty());
  summary.predicted_minibatch_seconds = 0;
  CHECK(slowness_text(summary, plan).empty());
  Summary failed = run_of(2);
  failed.minibatch_seconds = 0.12;
  for (RankSummary& rank : failed.ranks) rank.times->trained_seconds = 0;
  CHECK(slowness_text(failed, plan).empty());
}

TEST_CASE("where no cause explains that a run is slow it is told so") {
  const Plan plan = plan_of(2, 0.010);
  Summary summary = run_of(2);
  summary.minibatch_seconds = 0.036;
  for (RankSummary& rank : summary.ranks) {  // most of the waiting may be outside the steady state
    rank.times->trained_seconds = 5.7;
    rank.receive_wait_seconds = 2.3;
  }
  const std::string head = "3 times slower than predicted; ";
  const std::string end =
      "samples, sums of gradients, messages) none explains a fifth of it: trace.json in the run folder has "
      "each action";
  CHECK(slowness_text(summary, plan) ==
        head + "of the causes that are measured (a share of a core, compute, time between actions, " + end);
  for (RankSummary& rank : summary.ranks) rank.device = "cuda:0 (NVIDIA)";
  CHECK(slowness_text(summary, plan) == head + "of the causes that are measured (" + end);
  for (RankSummary& rank : summary.ranks) rank.times.reset();
  CHECK(slowness_text(summary, plan) ==
        head + "what its ranks waited for is not known: none has told its times");
}

TEST_CASE("each cause of slowness is named, with the rank that sets the pace and its figures") {
  const Plan plan = plan_of(2, 0.010);
  Summary summary = run_of(2);
  summary.minibatch_seconds = 0.036;  // 2.4 s more in 100 minibatches
  for (RankSummary& rank : summary.ranks) rank.times->trained_seconds = 3.6;
  RankSummary& slow = summary.ranks[1];
  MeasuredTimes& times = *slow.times;
  const std::string head = "3 times slower than predicted; likely: ";

  times.busy_seconds = 3.5;  // of which it computed 1.1
  CHECK(slowness_text(summary, plan) == head + "rank 1 got 0.31 of a core, other programs had the rest");
  summary.cores = 1;
  CHECK(slowness_text(summary, plan) == head + "rank 1 got 0.31 of a core: 2 ranks share 1 core");
  summary.ranks[0].host = "other";
  CHECK(slowness_text(summary, plan) == head + "rank 1 got 0.31 of a core, other programs had the rest");

  times.load_wait_seconds = 2.4;
  CHECK(slowness_text(summary, plan) == head + "rank 1 waits 24 ms a minibatch in the mean for its samples");

  times.load_wait_seconds = 0;
  times.cpu_seconds = 3.5;
  CHECK(slowness_text(summary, plan) == head +
                                            "the compute of rank 1 takes 35 ms a minibatch in the mean, the "
                                            "profile says 11 ms: profile again on this "
                                            "machine");

  times.busy_seconds = times.cpu_seconds = 1.2;
  slow.sync_wait_seconds = 2.4;
  CHECK(slowness_text(summary, plan) == head +
                                            "rank 1 waits 24 ms a minibatch in the mean for the sum of "
                                            "gradients, the plan says 1 ms: `probe` measures "
                                            "the links");

  slow.sync_wait_seconds = 0;
  slow.receive_wait_seconds = 2.3;
  CHECK(slowness_text(summary, plan) == head +
                                            "messages: even the busiest rank, 1, waits 23 ms a minibatch in "
                                            "the mean for its neighbours: `probe` "
                                            "measures the links");

  slow.receive_wait_seconds = 0.3;
  CHECK(slowness_text(summary, plan) ==
        head +
            "rank 1 spends 21 ms a minibatch in the mean between its actions: "
            "others had its core, or minibatches are too small for what the "
            "runtime does beside them");
  slow.receive_wait_seconds = 2.3;

  // A long time outside the steady state makes no cause of it smaller.
  times.trained_seconds = 36;
  times.cpu_seconds = 1.7;
  times.busy_seconds = 1.7;
  CHECK_THAT(slowness_text(summary, plan), Catch::Contains("likely: the compute of rank 1 takes 17 ms"));
  times.busy_seconds = times.cpu_seconds = 1.2;

  // Of 2.3 s 2.1 may be outside the steady state, while a neighbour evaluated.
  times.trained_seconds = 5.7;
  CHECK_THAT(slowness_text(summary, plan), Catch::Contains("none explains a fifth of it"));
  times.trained_seconds = 3.6;

  summary.minibatch_seconds = 2.172;
  CHECK_THAT(slowness_text(summary, plan), Catch::StartsWith("181 times slower than predicted"));
  summary.minibatch_seconds = 0.036;
}

TEST_CASE("a device's rank is not asked for its core") {
  const Plan plan = plan_of(1, 0.010);
  Summary summary = run_of(1);
  summary.minibatch_seconds = 0.036;
  summary.ranks[0].device = "cuda:0 (NVIDIA)";
  *summary.ranks[0].times = MeasuredTimes{100, 3.6, 3.5, 0, 0.2};
  CHECK_THAT(slowness_text(summary, plan), Catch::Contains("none explains a fifth of it"));
}

TEST_CASE("figures at random: one line, whatever they are, and never for a run that kept to its plan") {
  std::mt19937_64 random(25);
  const auto number = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
  for (int round = 0; round < 500; ++round) {
    const auto ranks = static_cast<int64_t>(1 + random() % 5);
    const Plan plan = plan_of(ranks, number(1));
    Summary summary = run_of(ranks);
    summary.cores = static_cast<int64_t>(random() % 4);
    summary.minibatch_seconds = number(2);
    summary.predicted_minibatch_seconds = number(1);
    for (RankSummary& rank : summary.ranks) {
      rank.receive_wait_seconds = number(100);
      rank.sync_wait_seconds = number(100);
      rank.times = MeasuredTimes{static_cast<int64_t>(random() % 3), number(200), number(100), number(50),
                                 number(100)};
      CHECK(rank.times->core_share() <= 1);
      CHECK(rank.times->core_share() >= 0);
    }
    const std::string text = slowness_text(summary, plan);
    CAPTURE(text);
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.empty() == (summary.minibatch_seconds <= kSlow * summary.predicted_minibatch_seconds));
  }
}

TEST_CASE("ranks beyond the cores are warned of") {
  Plan plan;
  CHECK(crowding_text(2, 1, 2, plan).empty());
  CHECK(crowding_text(1, 8, 0, plan).empty());
  CHECK(crowding_text(0, 1, 2, plan).empty());
  CHECK_THAT(crowding_text(16, 1, 2, plan), Catch::StartsWith("16 ranks on 2 cores: they take turns"));
  plan.predicted.emplace();
  CHECK_THAT(crowding_text(2, 2, 3, plan), Catch::StartsWith("2 ranks of 2 threads on 3 cores: "));
  CHECK_THAT(crowding_text(1, 2, 1, plan), Catch::StartsWith("1 rank of 2 threads on 1 core: "));
  plan.predicted->shared_cores = 2;
  CHECK(crowding_text(16, 1, 2, plan) == "16 ranks on 2 cores: they take turns, as the plan says");
}

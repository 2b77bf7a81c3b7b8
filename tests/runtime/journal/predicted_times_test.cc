// What a report says of a plan's prediction, of runs that are made up.
#include "runtime/journal/predicted_times.h"

#include <catch2/catch.hpp>
#include <random>

using namespace pipewright;

namespace {

// Stage 0 on ranks 0 and 1, stage 1 on rank 2; 200 minibatches, exactly as planned.
struct AsPlanned {
  Plan plan;
  Summary summary;

  AsPlanned() {
    plan.world_size = 3;
    plan.stages.resize(2);
    plan.stages[0].ranks = {0, 1};
    plan.stages[1].ranks = {2};
    plan.predicted.emplace();
    plan.predicted->minibatch_seconds = 0.010;
    plan.predicted->stages.resize(2);
    plan.predicted->stages[0].compute_seconds = 0.015;
    plan.predicted->stages[1].compute_seconds = 0.009;
    for (StagePrediction& stage : plan.predicted->stages) stage.step_seconds = 0.001;
    summary.world_size = 3;
    summary.cores = 4;
    summary.minibatch_seconds = summary.predicted_minibatch_seconds = 0.010;
    for (int64_t r = 0; r < 3; ++r) {
      RankSummary rank;
      rank.rank = r;
      rank.host = "host" + std::to_string(r);
      const int64_t minibatches = r == 2 ? 200 : 100;
      const double busy = static_cast<double>(minibatches) * (r == 2 ? 0.010 : 0.016);
      rank.times = MeasuredTimes{minibatches, 2.0, busy, 0, busy};
      summary.ranks.push_back(rank);
    }
  }
};

}  // namespace

TEST_CASE("of a run that is as planned, every rank's times are the plan's") {
  const AsPlanned run;
  const auto rows = rank_times(run.summary, run.plan);
  REQUIRE(rows.size() == 3);
  for (const RankTimes& row : rows) {
    CHECK(row.measured.compute_seconds == Approx(row.predicted.compute_seconds));
    CHECK(row.measured.other_seconds == Approx(row.predicted.other_seconds).margin(1e-12));
    CHECK(row.measured.period_seconds == Approx(row.predicted.period_seconds));
  }
  CHECK(rows[0].predicted.period_seconds == Approx(0.020));
  CHECK(rows[0].predicted.other_seconds == Approx(0.004));
  CHECK(rows[2].stages == std::vector<int64_t>{1});
}

TEST_CASE("the largest gap is named, with its rank, its stage and what shows the cause") {
  AsPlanned run;
  run.summary.minibatch_seconds = 0.0116;
  MeasuredTimes& times = *run.summary.ranks[2].times;
  times.busy_seconds = times.cpu_seconds = 200 * 0.012;
  times.trained_seconds = 200 * 0.0122;
  const std::string head =
      "16 % slower than predicted; the largest gap, in the mean over all minibatches: rank 2 (stage 1) "
      "computes "
      "12 ms of 12.2 ms, predicted 10 ms of 10 ms";
  CHECK(prediction_text(run.summary, run.plan) == head);
  times.cpu_seconds *= 0.9;
  CHECK(prediction_text(run.summary, run.plan) == head + ": it had 0.90 of a core");
  times.cpu_seconds = times.busy_seconds;
  for (RankSummary& rank : run.summary.ranks) rank.host = "one";
  CHECK(prediction_text(run.summary, run.plan) ==
        head + "; likely: 3 ranks share the host's caches and memory, the profile had them alone");

  AsPlanned waits;
  waits.summary.minibatch_seconds = 0.0115;
  waits.summary.ranks[1].times->trained_seconds = 2.4;
  waits.summary.ranks[1].receive_wait_seconds = 0.7;
  CHECK(
      prediction_text(waits.summary, waits.plan) ==
      "15 % slower than predicted; the largest gap, in the mean over all minibatches: rank 1 (stage 0) waits "
      "8 ms of 24 ms, predicted 4 ms of 20 ms: most of it for messages of its neighbours");
}

// A neighbour that evaluates, or writes, lets a rank wait for messages.
TEST_CASE("a gap outside the steady state is blamed on no message and no core") {
  AsPlanned run;
  run.summary.minibatch_seconds = 0.0102;
  RankSummary& rank = run.summary.ranks[1];
  rank.times->trained_seconds = 3.0;
  rank.receive_wait_seconds = 1.4;
  CHECK(
      prediction_text(run.summary, run.plan) ==
      "2 % slower than predicted; the largest gap, in the mean over all minibatches: rank 1 (stage 0) waits "
      "14 ms of 30 ms, predicted 4 ms of 20 ms: most of it outside the steady state, where it has a "
      "minibatch every 20.4 ms (median); outside are the first minibatches, filling and draining, "
      "evaluations and checkpoints");
}

TEST_CASE(
    "random shares: what a rank has between two minibatches is the plan's period over its part of them") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    AsPlanned run;
    Stage& stage = run.plan.stages[0];
    const auto a = static_cast<int64_t>(1 + random() % 5), b = static_cast<int64_t>(1 + random() % 5);
    const bool splits = random() % 3 == 0;
    (splits ? stage.split : stage.shares) = {a, b};
    const auto rows = rank_times(run.summary, run.plan);
    const double sum = static_cast<double>(a + b);
    CHECK(rows[0].predicted.period_seconds == Approx(splits ? 0.010 : 0.010 * sum / static_cast<double>(a)));
    CHECK(rows[1].predicted.period_seconds == Approx(splits ? 0.010 : 0.010 * sum / static_cast<double>(b)));
  }
}

TEST_CASE("an update counts for all minibatches of its round that the rank takes") {
  AsPlanned run;
  run.plan.stages[0].shares = {3, 1};
  CHECK(expected_of(run.plan, 0).update_seconds == Approx(0.001 / 3));
  CHECK(expected_of(run.plan, 1).update_seconds == Approx(0.001));
  CHECK(expected_of(run.plan, 2).update_seconds == Approx(0.001));
  run.plan.schedule = "1f1b-flush";
  run.plan.weights = "flush";
  run.plan.stages[0].shares.clear();
  run.plan.microbatches = 8;
  CHECK(expected_of(run.plan, 0).update_seconds == Approx(0.001 / 4));
  CHECK(expected_of(run.plan, 2).update_seconds == Approx(0.001 / 8));
}

TEST_CASE("nothing is said where nothing can be: no prediction, several plans, ranks that share cores") {
  AsPlanned run;
  run.plan.predicted.reset();
  CHECK(prediction_text(run.summary, run.plan).empty());
  AsPlanned changed;
  changed.summary.generations.resize(2);
  CHECK(prediction_text(changed.summary, changed.plan).empty());
  AsPlanned crowded;
  crowded.summary.cores = 2;
  for (RankSummary& rank : crowded.summary.ranks) rank.host = "host0";
  CHECK(prediction_text(crowded.summary, crowded.plan).empty());
  AsPlanned single;  // a minibatch alone has no time from one to the next
  single.summary.minibatch_seconds = 0;
  CHECK(prediction_text(single.summary, single.plan).empty());
  AsPlanned failed;
  for (RankSummary& rank : failed.summary.ranks) rank.times->trained_seconds = 0;
  CHECK(rank_times(failed.summary, failed.plan).empty());
  AsPlanned of_three_hosts;
  of_three_hosts.summary.cores = 1;
  CHECK_FALSE(prediction_text(of_three_hosts.summary, of_three_hosts.plan).empty());
}

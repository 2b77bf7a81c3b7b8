// A rank's speed as its actions tell: under every schedule, in simulated time.
#include "runtime/monitor/rank_monitor.h"

#include <catch2/catch.hpp>
#include <random>

#include "runtime/schedule/disturbance.h"

namespace pipewright::testing {
namespace {

struct RankCase {
  std::string schedule;
  PipelineShape shape;
};

std::vector<RankCase> rank_cases() {
  const auto flush = [](std::vector<int64_t> replicas, int64_t microbatches, int64_t several = 1) {
    PipelineShape shape{.replicas = std::move(replicas), .in_flight = {}};
    shape.in_flight.assign(shape.replicas.size(), 2 * microbatches);
    shape.weights = WeightRule::kFlush;
    shape.microbatches = microbatches;
    shape.stages_per_rank = several;
    return shape;
  };
  return {{"1f1b", {.replicas = {1, 1}, .in_flight = {2, 1}}},
          {"1f1b", {.replicas = {2, 1}, .in_flight = {2, 1}}},
          {"1f1b", {.replicas = {1, 2, 1}, .in_flight = {4, 2, 1}}},
          {"model-parallel", {.replicas = {1, 1}, .in_flight = {1, 1}}},
          {"gpipe", flush({1, 1}, 4)},
          {"1f1b-flush", flush({1, 1}, 4)},
          {"zb-h1", flush({1, 1}, 4)},
          {"interleaved", flush({1, 1, 1, 1}, 4, 2)}};
}

// What the monitor of each rank finds of a run in which each forward and backward takes 20 ms, but for
// `specs`.
std::vector<std::vector<SpeedChange>> found_of_ranks(const RankCase& c, const std::vector<std::string>& specs,
                                                     int64_t minibatches, double noise, uint64_t seed) {
  const Disturbances disturbances(specs);
  const auto ranks = placements(c.shape);
  std::vector<std::vector<SpeedChange>> all(ranks.size());
  const auto lists = schedule_of_all(c.schedule, c.shape, {0, minibatches});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::mt19937_64 random(seed + rank);
    std::normal_distribution<double> normal;
    RankMonitor monitor;
    for (const Action& action : lists[rank]) {
      const double quiet = action.kind == ActionKind::kUpdate ? 0.0005 : 0.02;
      const double alone = quiet * std::exp(noise * std::abs(normal(random)));
      const double extra =
          disturbances.extra_seconds({static_cast<int64_t>(rank), ranks[rank].replica, action, alone, 0});
      if (const auto change = monitor.ran(action, alone + extra)) all[rank].push_back(*change);
    }
  }
  return all;
}

}  // namespace

TEST_CASE(
    "a rank that becomes slow, and fast again, is seen under every schedule, its neighbours are not blamed") {
  for (const RankCase& c : rank_cases())
    for (uint64_t seed = 0; seed < 5; ++seed) {
      CAPTURE(c.schedule, c.shape.replicas, seed);
      const auto all = found_of_ranks(c, {"fixed:rank=1,factor=3,from=200,to=400"}, 700, 0.05, seed);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        CAPTURE(rank);
        if (rank != 1) {
          CHECK(all[rank].empty());
          continue;
        }
        REQUIRE(all[1].size() == 2);
        CHECK(std::abs(all[1][0].minibatch - 200) <= 16);
        CHECK(all[1][0].slowdown == Approx(3).epsilon(0.1));
        CHECK(all[1][0].after_seconds / all[1][0].before_seconds == Approx(3).epsilon(0.1));
        CHECK(std::abs(all[1][1].minibatch - 400) <= 16);
        CHECK(all[1][1].slowdown == 1);
      }
    }
}

TEST_CASE("in straight pipelines a slow rank is found within 20 minibatches") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto all = found_of_ranks(rank_cases()[0], {"fixed:rank=0,factor=1.5,from=300"}, 500, 0.05, seed);
    REQUIRE(all[0].size() == 1);
    CHECK(all[0][0].found - 300 <= 20 * 2);  // two minibatches a sample of 50 ms
    CHECK(all[0][0].found >= 300);
  }
}

TEST_CASE("a quiet run says nothing") {
  for (const RankCase& c : rank_cases())
    for (const double noise : {0.0, 0.1, 0.3}) {
      CAPTURE(c.schedule, noise);
      for (const auto& rank : found_of_ranks(c, {"random:probability=0.02,duration=200ms"}, 3000, noise, 1))
        CHECK(rank.empty());
    }
}

TEST_CASE("another plan is another baseline, and no change of speed") {
  RankMonitor monitor;
  const auto run = [&](double seconds, int64_t minibatches) {
    std::vector<SpeedChange> changes;
    for (int64_t k = 0; k < minibatches; ++k)
      for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward})
        if (const auto change = monitor.ran({kind, k}, seconds)) changes.push_back(*change);
    return changes;
  };
  CHECK(run(0.05, 100).empty());
  CHECK(run(0.10, 100).size() == 1);
  CHECK(monitor.slowdown() == Approx(2));
  monitor.plan_changed();
  CHECK(run(0.30, 100).empty());
  CHECK(monitor.slowdown() == Approx(2));
  CHECK(monitor.baseline_seconds() ==
        Approx(0.3));  // a forward and a backward of 0.3 s, twice as slow as when quiet
  const auto back = run(0.15, 100);
  REQUIRE(back.size() == 1);
  CHECK(back[0].slowdown == 1);
}

namespace {

// A rank in a pipeline with one minibatch in flight; what each run() finds.
class Rank {
 public:
  RankMonitor monitor;

  std::vector<SpeedChange> run(double seconds, int64_t minibatches, double noise = 0) {
    std::vector<SpeedChange> changes;
    for (int64_t k = 0; k < minibatches; ++k, ++minibatch_)
      for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
        const double took = seconds / 2 * std::exp(noise * std::abs(normal_(random_)));
        if (const auto change = monitor.ran({kind, minibatch_}, took)) changes.push_back(*change);
      }
    return changes;
  }

 private:
  int64_t minibatch_ = 0;
  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

}  // namespace

TEST_CASE("a slowdown that ends while the plan changes is over, whatever the rank computes then") {
  for (const double slowdown : {1.3, 2.0, 5.0})
    for (const double work : {0.4, 1.0, 1.7})         // of the new plan, against the one before
      for (const double profile : {0.9, 1.0, 1.1}) {  // is off by so much for the new one
        CAPTURE(slowdown, work, profile);
        for (const bool ends : {true, false}) {
          Rank rank;
          rank.monitor.plan_changed(0.03);
          CHECK(rank.run(0.1, 200).empty());
          REQUIRE(rank.run(0.1 * slowdown, 60).size() == 1);
          rank.monitor.plan_changed(0.03 * work * profile);
          const auto found = rank.run(0.1 * work * (ends ? 1 : slowdown), 100);
          if (ends) {
            REQUIRE(found.size() == 1);
            CHECK(found[0].slowdown == 1);
            CHECK(rank.monitor.baseline_seconds() == Approx(0.1 * work));
          } else {
            CHECK(found.empty());
            CHECK(rank.monitor.slowdown() == Approx(slowdown).epsilon(0.01));
          }
        }
      }
}

TEST_CASE("a slowdown that goes away by and by is over too") {
  Rank rank;
  CHECK(rank.run(0.1, 300, 0.02).empty());
  REQUIRE(rank.run(0.14, 300, 0.02).size() == 1);
  std::vector<SpeedChange> found;
  for (double seconds = 0.14; seconds > 0.1; seconds *= 0.98) {  // no step of it is one
    const auto more = rank.run(seconds, 250, 0.02);
    found.insert(found.end(), more.begin(), more.end());
  }
  const auto more = rank.run(0.1, 400, 0.02);
  found.insert(found.end(), more.begin(), more.end());
  REQUIRE_FALSE(found.empty());
  CHECK(found.back().slowdown == 1);
}

TEST_CASE(
    "on a machine that is slow now and then a rank is thought no slower by and by, though plans follow") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto between = [&](double least, double most) {
      return std::uniform_real_distribution<double>(least, most)(random);
    };
    Rank rank;
    double work = 0.1;
    rank.monitor.plan_changed(work);
    rank.run(work, 200, 0.05);
    for (int episode = 0; episode < 20; ++episode) {
      // About as long as it takes to find it and to change the plan, or longer.
      const double slow = between(1.25, 1.8);
      const bool seen = !rank.run(work * slow, static_cast<int64_t>(between(10, 80)), 0.05).empty();
      const auto follow = [&] {
        work = between(0.06, 0.15);
        rank.monitor.plan_changed(work * between(0.93, 1.07));
      };
      if (seen) follow();
      if (!rank.run(work, static_cast<int64_t>(between(100, 400)), 0.05).empty()) {
        follow();
        rank.run(work, 100, 0.05);
      }
    }
    CHECK(rank.monitor.slowdown() < 1.35);
  }
}

}  // namespace pipewright::testing

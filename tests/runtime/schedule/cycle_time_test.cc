// The pace for ever, against circles tried one by one and against long simulations; depths for any shape.
#include "runtime/schedule/cycle_time.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <random>

#include "graph/error.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::dashed;
using Numbers = std::vector<int64_t>;

// Every circle without a node twice.
double ratio_by_trying(int32_t nodes, const std::vector<Wait>& waits) {
  double largest = -std::numeric_limits<double>::infinity();
  std::vector<bool> used(nodes, false);
  const std::function<void(int32_t, int32_t, double, int64_t)> go = [&](int32_t start, int32_t at,
                                                                        double seconds, int64_t periods) {
    for (const Wait& wait : waits) {
      if (wait.u != at || wait.v < start) continue;
      if (wait.v == start)
        largest = std::max(largest, (seconds + wait.seconds) / static_cast<double>(periods + wait.periods));
      if (used[wait.v]) continue;
      used[wait.v] = true;
      go(start, wait.v, seconds + wait.seconds, periods + wait.periods);
      used[wait.v] = false;
    }
  };
  for (int32_t start = 0; start < nodes; ++start) {
    used[start] = true;
    go(start, start, 0, 0);
    used[start] = false;
  }
  return largest;
}

TEST_CASE("cycle ratio: by hand, and against all circles of random graphs") {
  CHECK(largest_cycle_ratio(1, {{0, 0, 3, 2}}) == 1.5);
  CHECK(largest_cycle_ratio(2, {{0, 1, 3, 0}, {1, 0, 1, 1}, {1, 1, 2, 1}}) == 4);
  CHECK(largest_cycle_ratio(2, {{0, 1, 3, -1}, {1, 0, 1, 3}, {1, 1, 2.5, 1}}) == 2.5);
  CHECK_THROWS_AS(largest_cycle_ratio(2, {{0, 1, 3, 0}, {1, 0, 1, 0}}), CheckError);
  CHECK_THROWS_AS(largest_cycle_ratio(2, {{0, 1, 3, 1}}), CheckError);
  std::mt19937_64 random(31);
  for (int round = 0; round < 500; ++round) {
    const auto nodes = static_cast<int32_t>(1 + random() % 6);
    std::vector<Wait> waits;
    for (int32_t v = 0; v < nodes; ++v)  // one circle through all, so that it is connected
      waits.push_back({v, (v + 1) % nodes, static_cast<double>(random() % 10), 1});
    for (size_t extra = random() % 8; extra > 0; --extra)
      waits.push_back({static_cast<int32_t>(random() % static_cast<size_t>(nodes)),
                       static_cast<int32_t>(random() % static_cast<size_t>(nodes)),
                       static_cast<double>(random() % 10), static_cast<int64_t>(1 + random() % 3)});
    const std::optional<double> ratio = largest_cycle_ratio(nodes, waits);
    REQUIRE(ratio);
    CHECK(*ratio == Approx(ratio_by_trying(nodes, waits)));
  }
}

StageTimes random_times(std::mt19937_64& random, double scale) {
  const auto number = [&](double high) {
    return std::uniform_real_distribution<double>(0, high * scale)(random);
  };
  StageTimes t{number(1), number(2)};
  if (random() % 2) t.send_activation_seconds = number(0.8), t.send_gradient_seconds = number(0.8);
  if (random() % 2) t.reduce_seconds = number(0.5), t.step_seconds = number(0.2);
  if (random() % 4 == 0) t.recompute_seconds = number(0.5);
  return t;
}

TEST_CASE("the pace for ever is what a long simulation comes to") {
  std::mt19937_64 random(32);
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    PipelineShape shape;
    std::vector<StageTimes> times;
    const size_t stages = 1 + random() % 4;
    for (size_t stage = 0; stage < stages; ++stage) {
      const int64_t replicas = 1 + static_cast<int64_t>(random() % 3);
      shape.replicas.push_back(replicas);
      shape.in_flight.push_back(1 + static_cast<int64_t>(random() % 7));
      times.push_back(random_times(random, static_cast<double>(replicas)));
    }
    if (random() % 3 == 0)
      for (size_t stage = 0; stage < stages; ++stage) {
        Numbers shares(shape.replicas[stage]);
        for (int64_t& share : shares) share = 1 + static_cast<int64_t>(random() % 3);
        shape.shares.push_back(shares);
      }
    if (random() % 3 == 0) shape.accumulation = 1 + static_cast<int64_t>(random() % 3);
    shape.in_flight = usable_in_flight(shape);
    if (random() % 3 == 0) {
      shape.weights = WeightRule::kTwoVersions;
      shape.microbatches = std::max<int64_t>(1, StageTurns(shape, 0).run_ahead(shape.in_flight[0])) +
                           static_cast<int64_t>(random() % 4);
    }
    CAPTURE(dashed(shape.replicas), dashed(shape.in_flight), shape.accumulation, shape.microbatches);
    const std::optional<double> endless = endless_minibatch_seconds(shape, times);
    if (!endless) continue;
    ++compared;
    // What was buffered while the pipeline filled makes a span look up to a few percent faster.
    const double simulated = steady_minibatch_seconds("1f1b", shape, times, {0, 6000});
    CHECK(simulated <= *endless * 1.002);
    CHECK(simulated >= *endless * 0.97);
    CHECK(*endless >= bottleneck_seconds(shape, times) * (1 - 1e-9));
  }
  CHECK(compared > 250);
  CHECK_FALSE(endless_minibatch_seconds({{97, 89, 83}, {3, 2, 1}}, std::vector<StageTimes>(3)));
}

TEST_CASE("depths for uneven shares, accumulation and 2bw reach the pace of the slowest") {
  const std::vector<StageTimes> times = {{3, 6}, {2, 4}, {1, 2}};
  PipelineShape shape{{2, 2, 1}, {100, 100, 100}};
  shape.shares = {{2, 1}, {}, {}};
  const auto reached = [&](const char* schedule) {
    PipelineShape chosen = shape;
    chosen.in_flight = choose_in_flight(schedule, shape, times);
    CHECK_NOTHROW(check_schedule_shape(schedule, chosen));
    if (std::string(schedule) == "1f1b") CHECK(usable_in_flight(chosen) == chosen.in_flight);
    return simulate(schedule, chosen, times, 600).steady_minibatch_seconds;
  };
  CHECK(reached("1f1b") <= 1.011 * bottleneck_seconds(shape, times));
  shape.accumulation = 3;
  CHECK(reached("1f1b") <= 1.011 * bottleneck_seconds(shape, times));
  shape.accumulation = 1;
  shape.weights = WeightRule::kTwoVersions;
  shape.microbatches = 12;
  CHECK(reached("1f1b") <= 1.011 * bottleneck_seconds(shape, times));
  // An interval that is too short for that keeps the depths down.
  shape.microbatches = 2;
  const Numbers shallow = choose_in_flight("1f1b", shape, times);
  PipelineShape short_interval = shape;
  short_interval.in_flight = shallow;
  CHECK(StageTurns(short_interval, 0).run_ahead(shallow[0]) <= 2);
  CHECK_NOTHROW(check_schedule_shape("1f1b", short_interval));
}

TEST_CASE("depths of a long pipeline whose bound leaves less than plenty") {
  // Given all to the first stages it would starve: those that run equally far ahead wait for each other.
  // Two minibatches a stage are within 1 % of the slowest, one within 5 %.
  const Numbers replicas(60, 1);
  std::vector<StageTimes> times;
  for (int64_t stage = 0; stage < 60; ++stage)
    times.push_back({1 + 0.01 * static_cast<double>(stage * 7 % 10), 2, 0, 0, 0.1, 0.1});
  for (const int64_t bound : {64, 100, 119, 1000}) {
    const Numbers depths = choose_in_flight(replicas, times, Numbers(60, bound));
    CAPTURE(bound, dashed(depths));
    CHECK(depths[0] <= bound);
    CHECK(*endless_minibatch_seconds({replicas, depths}, times) <=
          (bound < 119 ? 1.05 : 1.0101) * bottleneck_seconds({replicas, depths}, times));
  }
}

TEST_CASE("depths for schedules with a flush") {
  const std::vector<StageTimes> times(4, {1, 2, 0, 0, 0, 0, 1});
  PipelineShape shape{{1, 1, 1, 1}, {100, 100, 100, 100}};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = 8;
  CHECK(choose_in_flight("gpipe", shape, times) == Numbers{8, 8, 8, 8});
  CHECK(choose_in_flight("1f1b-flush", shape, times) == Numbers{4, 3, 2, 1});
  CHECK(choose_in_flight("zb-h1", shape, times) == Numbers{4, 4, 4, 4});
  CHECK(choose_in_flight("model-parallel", {{1, 1}, {9, 9}}, {{1, 2}, {1, 2}}) == Numbers{1, 1});
  shape.in_flight = {3, 3, 3, 3};
  CHECK(choose_in_flight("zb-h1", shape, times) == Numbers{3, 3, 3, 3});
  shape.stages_per_rank = 2;
  // Two ranks: the first has ((v - 1) p + 2 (p - 1) + 1) = 5 of its two stages in flight, at most.
  CHECK(choose_in_flight("interleaved", shape, times) == Numbers{4, 3, 2, 1});
  // Replicas work in bursts.
  PipelineShape replicated{{2, 1, 1}, {100, 100, 100}};
  replicated.weights = WeightRule::kFlush;
  replicated.microbatches = 32;
  const std::vector<StageTimes> balanced = {{2, 4}, {1, 2}, {1, 2}};
  const auto seconds = [&](const Numbers& depths) {
    PipelineShape at = replicated;
    at.in_flight = depths;
    return simulate("1f1b-flush", at, balanced, 320).steady_minibatch_seconds;
  };
  CHECK(seconds(choose_in_flight("1f1b-flush", replicated, balanced)) <=
        1.011 * std::min(seconds({16, 32, 32}), seconds(pipedream_in_flight({2, 1, 1}))));
}

}  // namespace
}  // namespace pipewright

// Depths where links are shared, against all depths there are.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "runtime/schedule/simulate.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using Depths = std::vector<int64_t>;

constexpr int64_t kDeepest = 9;

/// The least over all depths up to kDeepest.
double least_seconds(PipelineShape shape, const std::vector<StageTimes>& times,
                     const SimulationOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  Depths depths(shape.replicas.size(), 1);
  for (;;) {
    shape.in_flight = depths;
    if (usable_in_flight(shape) == depths)
      least =
          std::min(least, settled_minibatch_seconds("1f1b", shape, times, options, nullptr, 1.05 * least));
    size_t stage = 0;
    while (stage < depths.size() && depths[stage] == kDeepest) depths[stage++] = 1;
    if (stage == depths.size()) return least;
    ++depths[stage];
  }
}

TEST_CASE("depths on a shared link: as fast as any, but for the percent that is not worth depth") {
  std::mt19937_64 random(8);
  const auto number = [&](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  double worst = 1;
  int slower = 0, steep = 0;
  constexpr int kCases = 60;
  for (int round = 0; round < kCases; ++round) {
    PipelineShape shape;
    std::vector<StageTimes> times;
    SimulationOptions options;
    for (int stage = 0; stage < 3; ++stage) {
      shape.replicas.push_back(random() % 4 == 0 ? 2 : 1);
      shape.in_flight.push_back(kDeepest);
      StageTimes t{number(1), number(2)};
      StageMessages bytes;
      if (stage < 2) bytes.activation_bytes = static_cast<int64_t>(number(900));
      if (stage > 0) bytes.gradient_bytes = options.messages.back().activation_bytes;
      if (shape.replicas.back() > 1) bytes.reduce_bytes = static_cast<int64_t>(number(900));
      t.send_activation_seconds = 1e-3 * static_cast<double>(bytes.activation_bytes);
      t.send_gradient_seconds = 1e-3 * static_cast<double>(bytes.gradient_bytes);
      t.reduce_seconds = 1e-3 * static_cast<double>(bytes.reduce_bytes);
      times.push_back(t);
      options.messages.push_back(bytes);
    }
    options.network = {{6, 1e3, 0.01 * number(1), true}};
    const Depths chosen = choose_in_flight("1f1b", shape, times, options);
    const double least = least_seconds(shape, times, options);
    shape.in_flight = chosen;
    const double ratio = settled_minibatch_seconds("1f1b", shape, times, options) / least;
    INFO(round << ": " << testing::dashed(shape.replicas) << " at " << testing::dashed(chosen));
    worst = std::max(worst, ratio);
    if (ratio > 1.025) ++slower;
    if (chosen[0] - chosen[1] > 2 && chosen[1] - chosen[2] > 1) ++steep;
  }
  std::printf(
      "depths on a shared link: %d of %d slower than the best by more than 2.5 %%, worst %.3f; %d steep\n",
      slower, kCases, worst, steep);
  CHECK(slower <= kCases / 30);
  CHECK(worst < 1.1);
  CHECK(steep > 0);
}

TEST_CASE("depths looked up are those that would be chosen, whatever was asked for before") {
  std::mt19937_64 random(5);
  const auto number = [&](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  for (const WeightRule weights : {WeightRule::kStash, WeightRule::kTwoVersions}) {
    KnownDepths known;
    int looked_up = 0;
    for (int round = 0; round < 60; ++round) {
      PipelineShape shape;
      shape.weights = weights;
      if (weights == WeightRule::kTwoVersions) shape.microbatches = 6;
      std::vector<StageTimes> times;
      SimulationOptions options;
      for (int stage = 0; stage < 3; ++stage) {
        shape.replicas.push_back(1 + static_cast<int64_t>(random() % 2));
        shape.in_flight.push_back(20);
        times.push_back({number(1), number(2)});
        options.messages.push_back({stage < 2 ? 400 : 0, stage > 0 ? 400 : 0, 100});
      }
      // The same stages on several networks and under several aims, as a search among plans asks.
      double most = std::numeric_limits<double>::infinity();
      for (int again = 0; again < 4; ++again) {
        options.network = {{6, 1e3 * (1 + number(1)), 0.01, again % 2 == 0}};
        shape.rank_numbers.resize(static_cast<size_t>(shape.ranks()));
        std::iota(shape.rank_numbers.begin(), shape.rank_numbers.end(), 0);
        std::shuffle(shape.rank_numbers.begin(), shape.rank_numbers.end(), random);
        DepthAim alone, together;
        alone.most_seconds = together.most_seconds = most;
        together.known = &known;
        const Depths expected = choose_in_flight("1f1b", shape, times, options, &alone);
        const Depths found = choose_in_flight("1f1b", shape, times, options, &together);
        looked_up += together.simulated < alone.simulated;
        INFO(round << "." << again << ": " << testing::dashed(shape.replicas));
        // Plans that are too slow for the aim may be found so sooner or later, and are not taken.
        if (alone.seconds <= most) {
          CHECK(found == expected);
          CHECK(together.seconds == alone.seconds);
        } else {
          CHECK(together.seconds > most);
        }
        most = std::min(most, alone.seconds * (1.3 - 0.2 * again));
      }
    }
    CHECK(looked_up > 60);
  }
}

TEST_CASE("depths under a bound: a last stage that must not run ahead is not given up for hopeless") {
  // The middle stage has room for four; a last stage with more than one in flight starves.
  const PipelineShape shape{{1, 1, 1}, {100, 4, 100}};
  std::vector<StageTimes> times = {{3, 6.7}, {2.7, 4}, {4.4, 10}};
  times[1].send_activation_seconds = times[2].send_gradient_seconds = 3.33;
  DepthAim aim;
  aim.most_seconds = 16.4;
  const Depths chosen = choose_in_flight("1f1b", shape, times, {}, &aim);
  INFO(testing::dashed(chosen));
  CHECK(aim.seconds == Approx(14.4));
}

}  // namespace
}  // namespace pipewright

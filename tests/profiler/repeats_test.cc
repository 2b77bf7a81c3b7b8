#include "profiler/repeats.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>

#include "graph/statistics.h"

namespace pipewright::testing {
namespace {

TEST_CASE("the median of n values lies between those that the table of the sign test says") {
  // Of n coins: the most that both tails leave out with 5 % (Conover, Practical Nonparametric Statistics, A3).
  const std::vector<std::pair<int, int>> beyond = {{6, 1},  {8, 1},  {9, 2},   {11, 2},  {12, 3},  {14, 3},
                                                   {15, 4}, {20, 6}, {25, 8},  {30, 10}, {50, 18}, {100, 40}};
  for (const auto& [n, k] : beyond) {
    CAPTURE(n);
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back(100 + i);
    const double centre = 100 + (n - 1) / 2.0, end = 100 + n - k;
    std::shuffle(values.begin(), values.end(), std::mt19937_64(7));
    CHECK(median_known_within(values).value() == Approx((end - centre) / centre));
  }
  for (int n = 0; n < 6; ++n) CHECK_FALSE(median_known_within(std::vector<double>(static_cast<size_t>(n), 1)));
  CHECK(median_known_within({2, 2, 2, 2, 2, 2}) == 0.0);
  CHECK_FALSE(median_known_within({0, 0, 0, 0, 0, 0}));
  CHECK(median_known_within({9, 10, 10, 10, 10, 14}).value() == Approx(0.4));  // the farther end
  CHECK(median_known_within(std::vector<double>(100000, 3)) == 0.0);
}

TEST_CASE("it is repeated until the median is known, at least and at most so often and so long") {
  const RepeatRule rule{.aim = 0.1, .least = 3, .least_to_know = 7, .most = 12, .most_seconds = 5};
  const auto after = [&](const std::vector<double>& seconds, double elapsed = 0) {
    return repeating(seconds, elapsed, rule);
  };
  CHECK(after({}) == Repeating::kGoesOn);
  CHECK(after({1, 1}, 60) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1}, 4) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1}, 5) == Repeating::kGivesUp);
  CHECK(after({1, 1, 1, 1, 1, 1}) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1, 1, 1, 1, 1}) == Repeating::kKnown);
  CHECK(after({1, 1, 1, 1, 1, 1, 1}, 5) == Repeating::kKnown);
  CHECK(after({1, 1, 1, 1, 1, 1, 1.5}) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1, 1, 1, 1, 1.5}, 5) == Repeating::kGivesUp);
  CHECK(after({1, 1, 1, 1, 1, 1, 1, 1, 1.5}) == Repeating::kKnown);  // of nine one at each end is left out
  CHECK(after({1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1}) == Repeating::kGoesOn);
  CHECK(after({1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}) == Repeating::kGivesUp);
}

TEST_CASE("where repeats scatter it takes more of them, and the median is as near as the aim says") {
  std::mt19937_64 random(5);
  const RepeatRule rule;
  const auto scatter = [&](double deviation, size_t& repeats) {
    // Skewed, as times are: nothing is faster than undisturbed.
    std::lognormal_distribution<double> draw(0, deviation);
    std::vector<double> seconds;
    Repeating how;
    do seconds.push_back(draw(random));
    while ((how = repeating(seconds, 0)) == Repeating::kGoesOn);
    CHECK(how == Repeating::kKnown);
    repeats = seconds.size();
    return std::abs(median(seconds) - 1);  // the true median
  };
  size_t repeats_before = 0;
  for (const double deviation : {0.005, 0.02, 0.06}) {
    CAPTURE(deviation);
    size_t sum = 0, beyond_aim = 0;
    constexpr size_t kSeries = 100;
    for (size_t i = 0; i < kSeries; ++i) {
      size_t repeats = 0;
      if (scatter(deviation, repeats) > rule.aim) ++beyond_aim;
      sum += repeats;
    }
    CHECK(sum / kSeries >= repeats_before);
    CHECK(beyond_aim <= kSeries / 10);  // 95 %, and it is looked at after every repeat
    repeats_before = sum / kSeries;
  }
  CHECK(repeats_before > 2 * rule.least_to_know);
}

}  // namespace
}  // namespace pipewright::testing

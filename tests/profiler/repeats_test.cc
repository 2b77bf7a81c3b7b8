#include "profiler/repeats.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>

namespace pipewright::testing {
namespace {

TEST_CASE("a sum of medians is known as far as its repeats agree") {
  CHECK(sum_of_medians({{1, 2, 9}, {5, 5, 5}}) == 7);
  const auto within = [](const RepeatSeries& series) { return sum_known_within(series); };
  CHECK_FALSE(within({}));
  CHECK_FALSE(within({{1, 1, 1, 1, 1}}));
  CHECK(within({{1, 1, 1, 1, 1, 1}}) == 0.0);
  CHECK_FALSE(within({{0, 0, 0, 0, 0, 0}}));
  CHECK(within({{1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2}}) == 0.0);
  // A repeat that is odd now and then changes no median.
  CHECK(within({{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7}}) == 0.0);
  CHECK(within({{1, 2, 1, 2, 1, 2, 1, 2}}).value() == Approx(0.5 / 1.5));
  // Series that are slow in the same repeats are off together, those that take turns make up for it.
  const std::vector<double> one = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2},
                            other = {2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1};
  CHECK(within({one, one}).value() == Approx(within({one}).value()));
  CHECK(within({one, other}) == 0.0);
  CHECK(within({one, {30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30}}).value() == Approx(0.5 / 31.5));
  CHECK(within({one}) == within({one}));
}

TEST_CASE("the true sum of medians is within what is said, nearly always") {
  std::mt19937_64 random(9);
  // Skewed, as times are: nothing is faster than undisturbed.
  std::lognormal_distribution<double> own(0, 0.05), common(0, 0.03);
  for (const size_t repeats : {20, 60}) {
    CAPTURE(repeats);
    constexpr int kRounds = 200;
    int covered = 0;
    for (int round = 0; round < kRounds; ++round) {
      RepeatSeries series(8);
      for (size_t i = 0; i < repeats; ++i) {
        const double slow = common(random);
        for (auto& one : series) one.push_back(slow * own(random));
      }
      const double off = std::abs(sum_of_medians(series) / 8 - 1);
      if (off <= sum_known_within(series).value() * (1 + off)) ++covered;
    }
    CHECK(covered >= kRounds * 9 / 10);
    CHECK(covered < kRounds);  // else it says less than it knows
  }
}

TEST_CASE("it is repeated until the sum is known, at least and at most so often and so long") {
  const RepeatRule rule{.aim = 0.1, .least = 3, .least_to_know = 7, .most = 12, .most_seconds = 5};
  const auto after = [&](const std::vector<double>& seconds, double elapsed = 0) {
    return repeating({seconds, seconds}, elapsed, rule);
  };
  CHECK(repeating({}, 60, rule) == Repeating::kGoesOn);
  CHECK(after({1, 1}, 60) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1}, 4) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1}, 5) == Repeating::kGivesUp);
  CHECK(after({1, 1, 1, 1, 1, 1}) == Repeating::kGoesOn);
  CHECK(after({1, 1, 1, 1, 1, 1, 1}) == Repeating::kKnown);
  CHECK(after({1, 1, 1, 1, 1, 1, 1}, 5) == Repeating::kKnown);
  CHECK(after({1, 1, 1, 1, 1, 1, 1.5}) == Repeating::kKnown);  // the median does not hear of one
  CHECK(after({1, 2, 1, 2, 1, 2, 1}) == Repeating::kGoesOn);
  CHECK(after({1, 2, 1, 2, 1, 2, 1}, 5) == Repeating::kGivesUp);
  CHECK(after({1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1}) == Repeating::kGoesOn);
  CHECK(after({1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}) == Repeating::kGivesUp);
}

TEST_CASE("where repeats scatter it takes more of them, and the sum is as near as the aim says") {
  std::mt19937_64 random(5);
  const RepeatRule rule;
  const auto off = [&](double deviation, size_t& repeats) {
    std::lognormal_distribution<double> draw(0, deviation);
    RepeatSeries series(2);
    Repeating how;
    do
      for (auto& one : series) one.push_back(draw(random));
    while ((how = repeating(series, 0)) == Repeating::kGoesOn);
    CHECK(how == Repeating::kKnown);
    repeats = series[0].size();
    return std::abs(sum_of_medians(series) / 2 - 1);
  };
  size_t repeats_before = 0;
  for (const double deviation : {0.005, 0.03, 0.06}) {
    CAPTURE(deviation);
    size_t sum = 0, beyond_aim = 0;
    constexpr size_t kSeries = 100;
    for (size_t i = 0; i < kSeries; ++i) {
      size_t repeats = 0;
      if (off(deviation, repeats) > rule.aim) ++beyond_aim;
      sum += repeats;
    }
    CHECK(sum / kSeries >= repeats_before);
    CHECK(beyond_aim <= kSeries / 10);  // 95 %, and it is looked at more than once
    repeats_before = sum / kSeries;
  }
  CHECK(repeats_before > 2 * rule.least_to_know);
}

}  // namespace
}  // namespace pipewright::testing

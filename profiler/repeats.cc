#include "profiler/repeats.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "graph/error.h"
#include "graph/statistics.h"

namespace pipewright {
namespace {

size_t repeats_of(const RepeatSeries& series) { return series.empty() ? 0 : series.front().size(); }

bool is_time_to_look(size_t repeats, const RepeatRule& rule) {
  size_t look = rule.least_to_know;
  while (look < repeats) look += std::max<size_t>(1, look / 10);
  return look == repeats;
}

}  // namespace

double sum_of_medians(const RepeatSeries& series) {
  double sum = 0;
  for (const std::vector<double>& one : series) sum += median(one);
  return sum;
}

std::optional<double> sum_known_within(const RepeatSeries& series) {
  constexpr size_t kLeast = 6, kDraws = 200, kBeyond = 5;  // 2.5 % at each end
  const size_t repeats = repeats_of(series);
  if (repeats < kLeast) return std::nullopt;
  const double sum = sum_of_medians(series);
  if (sum <= 0) return std::nullopt;
  std::mt19937_64 random(1);
  std::vector<double> sums;
  std::vector<size_t> drawn(repeats);
  std::vector<double> values(repeats);
  for (size_t draw = 0; draw < kDraws; ++draw) {
    for (size_t& repeat : drawn) repeat = random() % repeats;  // the same with every standard library
    double drawn_sum = 0;
    for (const std::vector<double>& one : series) {
      PW_CHECK_EQ(one.size(), repeats);
      for (size_t i = 0; i < repeats; ++i) values[i] = one[drawn[i]];
      drawn_sum += median(values);
    }
    sums.push_back(drawn_sum);
  }
  std::sort(sums.begin(), sums.end());
  return std::max(sums[kDraws - 1 - kBeyond] - sum, sum - sums[kBeyond]) / sum;
}

Repeating repeating(const RepeatSeries& series, double elapsed_seconds, const RepeatRule& rule) {
  const size_t repeats = repeats_of(series);
  if (repeats < rule.least) return Repeating::kGoesOn;
  if (is_time_to_look(repeats, rule)) {
    const std::optional<double> within = sum_known_within(series);
    if (within && *within <= rule.aim) return Repeating::kKnown;
  }
  return repeats >= rule.most || elapsed_seconds >= rule.most_seconds ? Repeating::kGivesUp
                                                                      : Repeating::kGoesOn;
}

}  // namespace pipewright

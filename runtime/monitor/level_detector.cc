#include "runtime/monitor/level_detector.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// Medians whose spread is known well enough, and as many as are remembered.
constexpr size_t kMostRecent = 64;

// Of the standard deviation of normal numbers and the median of their distances from their own.
constexpr double kDeviationsOfMedian = 1.4826;

// The second smallest of five: disturbances of single samples make them longer, so what is low says most of
// the level.
double low_of(std::vector<double> values) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() / 4);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The mean of the two in the middle for an even count.
double median_of(std::vector<double> values) {
  PW_CHECK(!values.empty(), "median of nothing");
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

double LevelDetector::threshold() const {
  if (recent_.empty()) return settings_.least;
  std::vector<double> distances;
  for (const double logarithm : recent_) distances.push_back(std::abs(logarithm));
  // A spread seen in a few windows only may be much larger: Student's factor, roughly.
  const double few = 1 + 4.0 / static_cast<double>(recent_.size());
  const double spread = kDeviationsOfMedian * median_of(std::move(distances)) * few;
  return std::max(settings_.least, std::exp(settings_.deviations * spread));
}

std::optional<LevelChange> LevelDetector::add(double value) {
  PW_CHECK(value > 0, "a sample of " << value);
  ++samples_;
  window_.push_back(value);
  if (static_cast<int64_t>(window_.size()) < settings_.window) return std::nullopt;
  const double low = low_of(std::exchange(window_, {}));
  if (resting_ > 0) {
    --resting_;
    return std::nullopt;
  }
  if (level_ > 0) return judge(low);
  learned_.push_back(low);
  if (static_cast<int64_t>(learned_.size()) < settings_.learn) return std::nullopt;
  level_ = median_of(learned_);
  for (const double at : std::exchange(learned_, {})) note(at);
  return std::nullopt;
}

void LevelDetector::note(double low) {
  recent_.push_back(std::log(low / level_));
  if (recent_.size() > kMostRecent) recent_.erase(recent_.begin());
}

std::optional<LevelChange> LevelDetector::judge(double low) {
  const double limit = threshold();
  const bool above = low > level_ * limit, below = low < level_ / limit;
  if (!candidates_.empty() && (candidates_.back() > level_) != (low > level_)) candidates_.clear();
  if (!above && !below) {
    candidates_.clear();
    settle(low);
    return std::nullopt;
  }
  candidates_.push_back(low);
  if (static_cast<int64_t>(candidates_.size()) < settings_.confirm) return std::nullopt;
  LevelChange change;
  change.found = samples_ - 1;
  change.first = samples_ - static_cast<int64_t>(candidates_.size()) * settings_.window;
  change.before = level_;
  // The first of them may hold samples from before the step. What else disturbs a window makes it higher.
  change.after = candidates_.back();
  if (below && candidates_.size() > 2) change.after = std::min(change.after, *(candidates_.end() - 2));
  expect(change.after);
  settling_ = settings_.learn;
  resting_ = settings_.cool_down;
  return change;
}

// At the level. What was found with a change is a first guess: the next windows make it better.
void LevelDetector::settle(double low) {
  if (settling_ == 0) return note(low);
  learned_.push_back(low);
  if (--settling_ > 0) return;
  level_ = median_of(learned_);
  for (const double at : std::exchange(learned_, {})) note(at);
}

void LevelDetector::expect(double level) {
  PW_CHECK(level > 0, "a level of " << level);
  level_ = level;  // the spread, which is relative, stays known
  settling_ = 0;
  learned_.clear();
  candidates_.clear();
  window_.clear();
}

void LevelDetector::restart() {
  level_ = 0;
  settling_ = 0;
  learned_.clear();
  recent_.clear();
  candidates_.clear();
  window_.clear();
  resting_ = 0;
}

}  // namespace pipewright

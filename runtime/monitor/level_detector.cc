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
  for (const double low : recent_) distances.push_back(std::abs(std::log(low / level_)));
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
  for (const double at : std::exchange(learned_, {})) note(at);
  return std::nullopt;
}

void LevelDetector::note(double low) {
  recent_.push_back(low);
  if (recent_.size() > kMostRecent) recent_.erase(recent_.begin());
  level_ = median_of(recent_);
}

// The spread, which is relative, stays known.
void LevelDetector::move_to(double level) {
  for (double& low : recent_) low *= level / level_;
  level_ = level;
}

std::optional<LevelChange> LevelDetector::judge(double low) {
  const double limit = threshold();
  const bool above = low > level_ * limit, below = low < level_ / limit;
  for (std::vector<double>* row : {&candidates_, &beyond_})
    if (!row->empty() && (row->back() > level_) != (low > level_)) row->clear();
  if (is_beyond(low)) {
    beyond_.push_back(low);
    if (static_cast<int64_t>(beyond_.size()) == settings_.beyond) return change(beyond_);
  } else {
    beyond_.clear();
  }
  if (!above && !below) {
    candidates_.clear();
    // What may be the first of a new level is not yet of the old one.
    if (beyond_.empty()) settle(low);
    return std::nullopt;
  }
  candidates_.push_back(low);
  if (static_cast<int64_t>(candidates_.size()) < settings_.confirm) return std::nullopt;
  return change(candidates_);
}

bool LevelDetector::is_beyond(double low) const {
  constexpr double kTenth = 1.1;
  if (settling_ > 0 || static_cast<int64_t>(recent_.size()) < settings_.least_known) return false;
  const auto [least, most] = std::minmax_element(recent_.begin(), recent_.end());
  return (low > kTenth * *most && low > settings_.least * level_) ||
         (kTenth * low < *least && settings_.least * low < level_);
}

/// To the level of `lows`, the windows that show it.
std::optional<LevelChange> LevelDetector::change(const std::vector<double>& lows) {
  LevelChange change;
  change.found = samples_ - 1;
  change.first = samples_ - static_cast<int64_t>(lows.size()) * settings_.window;
  change.before = level_;
  // The first of them may hold samples from before the step. What else disturbs a window makes it higher.
  change.after = lows.back();
  if (change.after < level_ && lows.size() > 2) change.after = std::min(change.after, *(lows.end() - 2));
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
  move_to(median_of(learned_));
  for (const double at : std::exchange(learned_, {})) note(at);
}

void LevelDetector::expect(double level) {
  PW_CHECK(level > 0, "a level of " << level);
  move_to(level);
  settling_ = 0;
  learned_.clear();
  candidates_.clear();
  beyond_.clear();
  window_.clear();
}

void LevelDetector::restart() {
  level_ = 0;
  settling_ = 0;
  learned_.clear();
  recent_.clear();
  candidates_.clear();
  beyond_.clear();
  window_.clear();
  resting_ = 0;
}

}  // namespace pipewright

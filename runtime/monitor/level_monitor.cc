#include "runtime/monitor/level_monitor.h"

#include <algorithm>
#include <cmath>

namespace pipewright {
namespace {

// More samples than a change lies back when it is found.
constexpr size_t kRemembered = 64;
// A slowdown that has gone up or down by so much without a step is another one.
constexpr double kDrift = 1.25;

}  // namespace

std::optional<SpeedChange> LevelMonitor::add(double seconds, int64_t first, int64_t last) {
  first_of_.push_back(first);
  if (first_of_.size() > kRemembered) first_of_.erase(first_of_.begin());
  const int64_t index = samples_++;
  const auto change = detector_.add(seconds + grain_seconds_);
  if (!knows_level()) return std::nullopt;
  if (quiet_ == 0) {
    // Nearer, by factors, to quiet than to as slow as it was: that is over.
    const bool is_over =
        expected_quiet_ > 0 && slowdown_ > 1 && detector_.level() < expected_quiet_ * std::sqrt(slowdown_);
    quiet_ = detector_.level() / (is_over ? 1 : slowdown_);
    if (is_over) return changed(expected_quiet_ * slowdown_, first_of_.front(), last);
  }
  if (change) {
    const auto back = std::min<int64_t>(index - change->first, static_cast<int64_t>(first_of_.size()) - 1);
    return changed(change->before, first_of_[first_of_.size() - 1 - static_cast<size_t>(back)], last);
  }
  if (slowdown_ == 1) {
    quiet_ = detector_.level();
    has_been_quiet_ = true;
  } else if (has_drifted()) {
    return changed(quiet_ * slowdown_, first_of_.front(), last);
  }
  return std::nullopt;
}

// The slowdown is what the level says now.
std::optional<SpeedChange> LevelMonitor::changed(double before, int64_t first, int64_t last) {
  const double level = detector_.level();
  slowdown_ = level / quiet_;
  if (slowdown_ < kQuiet) {
    slowdown_ = 1;
    quiet_ = level;
    has_been_quiet_ = true;
  }
  const double after = level - grain_seconds_;
  // Of what is smaller than a thousandth of the grain, nobody knows how small it is.
  const double quiet = std::max(quiet_ - grain_seconds_, grain_seconds_ / 1000);
  return SpeedChange{first, last, before - grain_seconds_, after, slowdown_ == 1 ? 1 : after / quiet};
}

// While no step is found the level follows what is seen, by and by.
bool LevelMonitor::has_drifted() const {
  const double now = detector_.level() / quiet_;
  return now < kQuiet || now > kDrift * slowdown_ || kDrift * now < slowdown_;
}

void LevelMonitor::restart(double expected_quiet_seconds) {
  detector_.restart();
  first_of_.clear();
  quiet_ = 0;
  has_been_quiet_ = false;
  expected_quiet_ = expected_quiet_seconds > 0 ? expected_quiet_seconds + grain_seconds_ : 0;
}

double LevelMonitor::baseline_seconds() const { return knows_level() ? quiet_ - grain_seconds_ : 0; }

}  // namespace pipewright

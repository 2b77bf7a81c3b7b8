#include "runtime/monitor/level_monitor.h"

#include <algorithm>
#include <cmath>

namespace pipewright {
namespace {

// More samples than a change lies back when it is found.
constexpr size_t kRemembered = 64;

}  // namespace

std::optional<SpeedChange> LevelMonitor::add(double seconds, int64_t first, int64_t last) {
  first_of_.push_back(first);
  if (first_of_.size() > kRemembered) first_of_.erase(first_of_.begin());
  const int64_t index = samples_++;
  const auto change = detector_.add(seconds + grain_seconds_);
  if (!change) return std::nullopt;
  slowdown_ *= change->factor();
  if (slowdown_ < kQuiet) slowdown_ = 1;
  const auto back = std::min<int64_t>(index - change->first, static_cast<int64_t>(first_of_.size()) - 1);
  const double after = change->after - grain_seconds_;
  // Of what is smaller than a thousandth of the grain, nobody knows how small it is.
  const double quiet = std::max(change->after / slowdown_ - grain_seconds_, grain_seconds_ / 1000);
  return SpeedChange{first_of_[first_of_.size() - 1 - static_cast<size_t>(back)], last,
                     change->before - grain_seconds_, after, slowdown_ == 1 ? 1 : after / quiet};
}

void LevelMonitor::restart() {
  detector_.restart();
  first_of_.clear();
}

double LevelMonitor::baseline_seconds() const {
  return knows_level() ? detector_.level() / slowdown_ - grain_seconds_ : 0;
}

}  // namespace pipewright

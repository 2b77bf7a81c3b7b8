// How long the first of a group waits for others.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "graph/sync_rules.h"

namespace pipewright {

/// A part of the time that an update takes this replica (without what it waits for groups): a tenth less
/// after each group that was large enough, twice as much after one that was not, within bounds. SDPipe's
/// controller, whose bounds are times (10 us, 10 ms) whatever a minibatch takes.
class GroupWait {
 public:
  static constexpr double kLeast = 0.001;

  explicit GroupWait(const PartialReduceRules& rules) : rules_(rules), part_(rules.wait) {}

  std::chrono::nanoseconds now() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(part_ * update_seconds_ * 1e9));
  }
  double part() const { return part_; }
  /// Another update has come so long after the one before; then the group. The time is smoothed.
  void took(double seconds) {
    update_seconds_ += (update_seconds_ == 0 ? 1 : 0.2) * (seconds - update_seconds_);
  }
  void found(int64_t members) {
    const double least = std::min(kLeast, rules_.wait);
    part_ = std::clamp(part_ * (members < rules_.fewest ? 2 : 0.9), least, rules_.most_wait);
  }

 private:
  PartialReduceRules rules_;
  double part_;
  double update_seconds_ = 0;
};

}  // namespace pipewright

// How long the first of a group waits for others.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "graph/sync_rules.h"
#include "runtime/side_by_side/group_patience.h"

namespace pipewright {

/// A part of the time that an update takes this replica (without what it waits for groups): a tenth less
/// after each group that was large enough, twice as much after one that was not, within bounds. SDPipe's
/// controller, whose bounds are times (10 us, 10 ms) whatever a minibatch takes.
class GroupWait {
 public:
  /// Pipelines that are equally fast but for some noise then stay together: in simulation, with noise of 0.5
  /// %, groups of 8 have 7.5 members in the mean and 2.9 with 0.001, at the same pace.
  static constexpr double kLeast = 0.02;

  explicit GroupWait(const PartialReduceRules& rules) : rules_(rules), part_(rules.wait) {}

  GroupPatience now() const { return {nanoseconds(part_ * update_seconds_), nanoseconds(update_seconds_)}; }
  /// How long it takes from announcing an update until it is made; smoothed.
  std::chrono::nanoseconds ready_in() const { return nanoseconds(ready_in_seconds_); }
  double part() const { return part_; }
  void was_ready_in(double seconds) { smooth(seconds, ready_in_seconds_); }
  /// Another update has come so long after the one before; then the group. The time is smoothed.
  void took(double seconds) { smooth(seconds, update_seconds_); }
  void found(int64_t members) {
    const double least = std::min(kLeast, rules_.wait);
    part_ = std::clamp(part_ * (members < rules_.fewest ? 2 : 0.9), least, rules_.most_wait);
  }

 private:
  static std::chrono::nanoseconds nanoseconds(double seconds) {
    return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  }
  static void smooth(double seconds, double& mean) { mean += (mean == 0 ? 1 : 0.2) * (seconds - mean); }

  PartialReduceRules rules_;
  double part_;
  double update_seconds_ = 0, ready_in_seconds_ = 0;
};

}  // namespace pipewright

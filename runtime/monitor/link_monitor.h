// How long messages take from one rank to another, against the link's own quiet baseline.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/monitor/level_monitor.h"

namespace pipewright {

/// When a message was sent, asked for and there: seconds of one clock.
struct MessageTimes {
  double sent_seconds = 0;   ///< the sender began to send it
  double asked_seconds = 0;  ///< the receiver began to wait for it
  double got_seconds = 0;
};

/// Fed with messages of one size from one rank to another, in order.
///
/// How long a message was on its way is known where its receiver was waiting before it was sent: until it was
/// there. Of one that was asked for later it is only known that it took no longer than until it was there,
/// and no less than from being asked for until then; how long it lay there ready says how busy the receiver
/// is, and nothing about the link. Such a message counts as having taken what its link is known to take, now
/// or else when it was quiet, or the nearest that its bounds allow. So a slow sender or receiver moves no
/// level: time on the way begins when the sender has computed, and ends when the receiver, waiting, has it.
///
/// The baseline is therefore a bound where messages always lie ready: what the quickest few of the first
/// kFirst messages took at most. A link is said to be slow when it takes longer than that, which is when
/// somebody begins to wait for it.
class LinkMonitor {
 public:
  /// A link that takes less than so many times as long, the grain counted, is not slow: what messages take
  /// varies more than what computing does, and so does the level that is found at the end of a slow time.
  static constexpr double kSlow = 1.3;
  /// Messages that the baseline is learned from.
  static constexpr size_t kFirst = 20;

  /// `grain_seconds` > 0: what schedulers of threads, or clocks that differ, make of a message's time.
  LinkMonitor(DetectorSettings settings, double grain_seconds) : level_(settings, grain_seconds) {}

  /// A step up, or the end of one. Messages that take less long than ever before only make the baseline
  /// better.
  std::optional<SpeedChange> took(int64_t minibatch, const MessageTimes& times);
  /// Another plan: messages are of another size, and the link is as slow as it was.
  void plan_changed() {
    level_.restart();
    first_.clear();
    learned_ = false;
  }

  double slowdown() const { return slowdown_; }

 private:
  struct Bounds {
    int64_t minibatch = 0;
    double least_seconds = 0, most_seconds = 0;
  };
  std::optional<SpeedChange> add(const Bounds& message, double expected_seconds);
  void learn();

  LevelMonitor level_;
  std::vector<Bounds> first_;  // until the baseline is learned from them
  bool learned_ = false;
  double slowdown_ = 1;  // as it was said
};

}  // namespace pipewright

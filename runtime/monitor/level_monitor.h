// How many times as long something takes as when the run was quiet: the steps of its level, counted from its
// own quiet baseline, so that no prediction is needed. What ranks and links are judged by.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/monitor/level_detector.h"

namespace pipewright {

/// It has begun to take longer, or less long again: computing on a rank, a message on a link.
struct SpeedChange {
  int64_t minibatch = 0;                         ///< the first of those that show it
  int64_t found = 0;                             ///< the one with which it was found
  double before_seconds = 0, after_seconds = 0;  ///< of compute, for a minibatch; of a message
  double slowdown = 1;                           ///< from now on, against the time when the run was quiet
};

class LevelMonitor {
 public:
  /// A slowdown nearer to 1 than this is none.
  static constexpr double kQuiet = 1.1;

  /// `grain_seconds`: steps are factors of this and the sample together, so what is much smaller is none.
  explicit LevelMonitor(DetectorSettings settings = {}, double grain_seconds = 0)
      : detector_(settings), grain_seconds_(grain_seconds) {}

  /// A sample of minibatches `first` to `last`; `seconds` + grain > 0.
  std::optional<SpeedChange> add(double seconds, int64_t first, int64_t last);
  /// What is sampled is something else from now on, as slow as it was: the baseline is learned again.
  /// `expected_quiet_seconds`: what it would take when quiet, roughly, if that is known. What takes nearer to
  /// that than to as many times as long as it was slow is not slow any more, and add() says so.
  void restart(double expected_quiet_seconds = 0);

  double slowdown() const { return slowdown_; }
  /// What it takes now; 0 while that is learned.
  double level_seconds() const { return knows_level() ? detector_.level() - grain_seconds_ : 0; }
  bool knows_level() const { return detector_.level() > 0; }
  /// What it took when quiet; 0 while that is learned.
  double baseline_seconds() const;
  /// Whether it has been quiet since restart(), so that its baseline was seen and not thought.
  bool has_been_quiet() const { return has_been_quiet_; }

 private:
  std::optional<SpeedChange> changed(double before, int64_t first, int64_t last);
  bool has_drifted() const;

  LevelDetector detector_;
  double grain_seconds_;
  // With the grain. While it is slow, `quiet_` stays what it was: steps that were found and a level that went
  // back by and by come to the same.
  double slowdown_ = 1;
  double quiet_ = 0;  // 0: to be learned
  bool has_been_quiet_ = false;
  double expected_quiet_ = 0;      // 0: not known
  std::vector<int64_t> first_of_;  // minibatch that each of the detector's last samples begins with
  int64_t samples_ = 0;
};

}  // namespace pipewright

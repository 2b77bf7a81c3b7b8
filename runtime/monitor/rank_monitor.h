// How fast a rank computes, watched while it trains: against its own quiet baseline, so that no prediction is
// needed.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/monitor/level_monitor.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

/// Fed with every action of one rank's training, in order. Compute is added up over whole turns of the
/// pipeline (as many backwards as forwards) that last kSampleSeconds at least: shorter ones would see a core
/// that is shared in time slices as fast and slow by turns. Costs two additions an action.
class RankMonitor {
 public:
  static constexpr double kSampleSeconds = 0.05;

  explicit RankMonitor(DetectorSettings settings = {}) : level_(settings) {}

  /// `seconds`: that the action computed; waits for samples or messages are none of it.
  std::optional<SpeedChange> ran(const Action& action, double seconds);
  /// The pipeline is empty and fills again: what is half added up is dropped.
  void drained();
  /// Another plan: the rank computes something else, and is as slow as it was. The baseline is learned again.
  /// `work_seconds`: what a minibatch of that takes by somebody's profile; 0: nobody knows. Where it is known
  /// of a plan under which the rank was quiet too, a slowdown that ended during the change is found.
  void plan_changed(double work_seconds = 0);

  double slowdown() const { return level_.slowdown(); }
  /// For a minibatch, when quiet; 0 while it is learned.
  double baseline_seconds() const { return level_.baseline_seconds(); }

 private:
  struct Sample {
    double seconds = 0;
    int64_t backwards = 0;
    int64_t first_minibatch = 0;
  };

  std::optional<SpeedChange> take_sample(int64_t minibatch);

  LevelMonitor level_;
  double work_seconds_ = 0;       // of a minibatch by the profile, under the plan in force; 0: not known
  double quiet_of_profiled_ = 0;  // times that it takes when quiet, as last seen; 0: never
  int64_t in_flight_ = 0;         // forwards whose backward has not ended
  int64_t half_done_ = 0;         // of them, those whose backward has run in part
  /// Both, where a sample begins and ends; none: the pipeline fills.
  std::optional<std::pair<int64_t, int64_t>> balanced_;
  Sample sample_;
};

}  // namespace pipewright

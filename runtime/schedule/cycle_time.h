// The pace of an asynchronous pipeline for ever, without simulating it: a schedule leaves no choice open, so
// its times obey x(v) = max over what v waits for of (x(u) + seconds), the same for every period of the round
// robin, and the time of a period is the largest mean over the circles of waits (max-plus algebra; Baccelli,
// Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, chapter 3).
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/schedule/simulate.h"

namespace pipewright {

/// v waits for u of `periods` periods before, and that long from when u began.
struct Wait {
  int32_t u = 0, v = 0;
  double seconds = 0;
  int64_t periods = 0;  ///< may be negative on a wait, but not in the sum over a circle
};

/// The largest ratio of seconds to periods over all circles of waits, found by Howard's policy iteration.
/// Every node waits for something. CheckError if a circle of waits has no period: a deadlock. Nothing if it
/// does not settle within a thousand improvements.
std::optional<double> largest_cycle_ratio(int32_t nodes, const std::vector<Wait>& waits);

/// Minibatches after which the round robins and rounds of all stages are back where they were; nothing where
/// that is too long for the exact cycle time to be quicker than simulating, or stages wait for each other's
/// updates.
std::optional<int64_t> endless_period(const PipelineShape& shape);

/// endless_minibatch_seconds() of one pipeline at several depths, each quicker for what the last has shown.
class EndlessPace {
 public:
  EndlessPace();
  ~EndlessPace();

  /// Where it is more than `enough`, some number above that, by which it is at least as much.
  std::optional<double> minibatch_seconds(const PipelineShape& shape, const std::vector<StageTimes>& times,
                                          double enough = std::numeric_limits<double>::infinity());

  /// What all calls have taken, in minibatches of a stage simulated on a network (settle.cc): of a period
  /// each stage's minibatches, once for each pass over their waits, which is as much quicker.
  int64_t simulated() const { return visited_ / kVisitsForEvents; }

 private:
  static constexpr int64_t kVisitsForEvents = 9;
  int64_t visited_ = 0;
  struct State;
  std::unique_ptr<State> state_;
};

/// Seconds per minibatch of 1f1b with these depths (usable ones), as simulate() without options has them in
/// the long run. Nothing where endless_period() is nothing.
std::optional<double> endless_minibatch_seconds(const PipelineShape& shape,
                                                const std::vector<StageTimes>& times);

}  // namespace pipewright

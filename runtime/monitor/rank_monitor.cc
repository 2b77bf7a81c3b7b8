#include "runtime/monitor/rank_monitor.h"

#include <utility>

namespace pipewright {

std::optional<SpeedChange> RankMonitor::ran(const Action& action, double seconds) {
  const bool ends = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight;
  const bool computes = ends || action.kind == ActionKind::kForward ||
                        action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kUpdate;
  if (!computes) return std::nullopt;
  if (action.kind == ActionKind::kForward) ++in_flight_;
  if (ends) --in_flight_;
  if (action.kind == ActionKind::kBackwardInput) ++half_done_;
  if (action.kind == ActionKind::kBackwardWeight) --half_done_;
  if (!balanced_) {
    // The pipeline is as full as it will be when the first backward has ended.
    if (!ends) return std::nullopt;
    balanced_ = {in_flight_, half_done_};
    sample_ = {};
    sample_.first_minibatch = action.index + 1;
    return std::nullopt;
  }
  sample_.seconds += seconds;
  sample_.backwards += ends ? 1 : 0;
  if (std::pair(in_flight_, half_done_) != *balanced_ || sample_.backwards == 0 ||
      sample_.seconds < kSampleSeconds)
    return std::nullopt;
  return take_sample(action.index);
}

std::optional<SpeedChange> RankMonitor::take_sample(int64_t minibatch) {
  const Sample sample = sample_;
  sample_ = {};
  sample_.first_minibatch = minibatch + 1;
  return level_.add(sample.seconds / static_cast<double>(sample.backwards), sample.first_minibatch,
                    minibatch);
}

void RankMonitor::drained() {
  in_flight_ = half_done_ = 0;
  balanced_.reset();
}

void RankMonitor::plan_changed(double work_seconds) {
  drained();
  if (level_.has_been_quiet() && work_seconds_ > 0)
    quiet_of_profiled_ = level_.baseline_seconds() / work_seconds_;
  level_.restart(quiet_of_profiled_ * work_seconds);
  work_seconds_ = work_seconds;
}

}  // namespace pipewright

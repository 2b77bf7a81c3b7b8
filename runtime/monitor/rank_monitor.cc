#include "runtime/monitor/rank_monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pipewright {
namespace {

// More samples than a change lies back when it is found.
constexpr size_t kRemembered = 64;

}  // namespace

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
  first_of_.push_back(sample.first_minibatch);
  if (first_of_.size() > kRemembered) first_of_.erase(first_of_.begin());
  const int64_t index = samples_++;
  const auto change = detector_.add(sample.seconds / static_cast<double>(sample.backwards));
  if (!change) return std::nullopt;
  slowdown_ *= change->factor();
  if (std::abs(std::log(slowdown_)) < std::log(kQuiet)) slowdown_ = 1;
  const auto back = std::min<int64_t>(index - change->first, static_cast<int64_t>(first_of_.size()) - 1);
  return SpeedChange{first_of_[first_of_.size() - 1 - static_cast<size_t>(back)], minibatch, change->before,
                     change->after, slowdown_};
}

void RankMonitor::drained() {
  in_flight_ = half_done_ = 0;
  balanced_.reset();
}

void RankMonitor::plan_changed() {
  drained();
  detector_.restart();
  first_of_.clear();
}

}  // namespace pipewright

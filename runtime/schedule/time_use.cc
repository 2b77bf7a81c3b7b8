#include "runtime/schedule/time_use.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pipewright {
namespace {

bool is_backward(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

/// When what a stage sends of a minibatch was made, on its last rank: by stage, minibatch and direction.
using Made = std::map<std::tuple<int64_t, int64_t, bool>, double>;

}  // namespace

std::vector<TimeUse> time_use(const Simulation& timeline) {
  Made made;
  const auto stage_of = [&](const SimulatedAction& a) {
    return a.action.stage_or(timeline.ranks[static_cast<size_t>(a.rank)].placement.stage);
  };
  for (const SimulatedAction& a : timeline.actions) {
    if (a.action.kind != ActionKind::kForward && !is_backward(a.action.kind)) continue;
    double& end = made[{stage_of(a), a.action.index, is_backward(a.action.kind)}];
    end = std::max(end, a.end_seconds);
  }
  std::vector<TimeUse> uses(timeline.ranks.size());
  std::vector<double> reached(uses.size(), -1);  // up to where the rank's time is told; -1: no forward yet
  for (size_t r = 0; r < uses.size(); ++r) uses[r].rank = timeline.ranks[r].number;
  for (const SimulatedAction& a : timeline.actions) {
    TimeUse& use = uses[static_cast<size_t>(a.rank)];
    double& at = reached[static_cast<size_t>(a.rank)];
    if (at < 0) {  // what it waited for before is the filling of the pipeline
      if (a.action.kind != ActionKind::kForward) continue;
      use.fill_drain_seconds = at = a.begin_seconds;
    }
    use.other_seconds += std::max(0.0, a.begin_seconds - at);
    const double begin = std::max(a.begin_seconds, at), end = std::max(begin, a.end_seconds);
    at = end;
    switch (a.action.kind) {
      case ActionKind::kReceiveActivation:
      case ActionKind::kReceiveGradient: {
        const bool backward = a.action.kind == ActionKind::kReceiveGradient;
        const auto maker = made.find({stage_of(a) + (backward ? 1 : -1), a.action.index, backward});
        const double ready = maker == made.end() ? end : std::clamp(maker->second, begin, end);
        use.dependency_seconds += ready - begin;
        use.transfer_seconds += end - ready;
        break;
      }
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        use.transfer_seconds += end - begin;
        break;
      case ActionKind::kReduce:
      case ActionKind::kAverage:
        use.reduce_seconds += end - begin;
        break;
      default: {
        const double waited = std::min(a.samples_wait_seconds, end - begin);
        use.samples_seconds += waited;
        use.compute_seconds += end - begin - waited;
      }
    }
  }
  for (size_t r = 0; r < uses.size(); ++r)
    uses[r].fill_drain_seconds += timeline.total_seconds - std::max(0.0, reached[r]);
  return uses;
}

}  // namespace pipewright

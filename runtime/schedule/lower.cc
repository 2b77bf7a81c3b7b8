#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<Action> lower(const std::vector<Action>& compute, const PipelineShape& shape, int64_t stage) {
  const bool previous = stage > 0;
  const bool next = stage + 1 < shape.stages();
  const bool replicated = shape.replicas[stage] > 1;
  std::vector<Action> actions;
  actions.reserve(3 * compute.size());
  const auto add_if = [&](bool needed, ActionKind kind, int64_t index) {
    if (needed) actions.push_back({kind, index});
  };
  for (const Action& action : compute) {
    switch (action.kind) {
      case ActionKind::kForward:
        add_if(previous, ActionKind::kReceiveActivation, action.index);
        actions.push_back(action);
        add_if(next, ActionKind::kSendActivation, action.index);
        break;
      case ActionKind::kBackward:
        add_if(next, ActionKind::kReceiveGradient, action.index);
        actions.push_back(action);
        // Before the reduce that may follow: the other replicas may need what the stage before sends only
        // after it has this gradient (1-2 deadlocks otherwise).
        add_if(previous, ActionKind::kSendGradient, action.index);
        break;
      case ActionKind::kUpdate:
        add_if(replicated, ActionKind::kReduce, action.index);
        actions.push_back(action);
        break;
      default:  // communication is added here only; what is there already stays
        actions.push_back(action);
        break;
    }
  }
  return actions;
}

}  // namespace pipewright

#include "runtime/schedule/schedule.h"

namespace pipewright {

std::vector<Action> lower(const std::vector<Action>& compute, const PipelineShape& shape, int64_t stage) {
  const bool replicated = shape.replicas[stage] > 1;
  std::vector<Action> actions;
  actions.reserve(3 * compute.size());
  for (const Action& action : compute) {
    const int64_t at = action.stage_or(stage);
    const bool previous = at > 0 && shape.crosses_ranks(at - 1);
    const bool next = at + 1 < shape.stages() && shape.crosses_ranks(at);
    const bool trains = shape.trains(at);
    const auto add_if = [&](bool needed, ActionKind kind) {
      if (needed) actions.push_back({kind, action.index, action.stage});
    };
    switch (action.kind) {
      case ActionKind::kForward:
        add_if(previous, ActionKind::kReceiveActivation);
        actions.push_back(action);
        add_if(next, ActionKind::kSendActivation);
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        add_if(next && shape.receives_gradient(at), ActionKind::kReceiveGradient);
        actions.push_back(action);
        // Before the reduce that may follow: the other replicas may need what the stage before sends only
        // after it has this gradient (1-2 deadlocks otherwise).
        add_if(previous && shape.sends_gradient(at), ActionKind::kSendGradient);
        break;
      case ActionKind::kUpdate:
        add_if(replicated && trains, ActionKind::kReduce);
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

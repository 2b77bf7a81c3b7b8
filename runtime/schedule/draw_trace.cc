#include "runtime/schedule/draw.h"
#include "runtime/schedule/trace_events.h"

namespace pipewright {
namespace {

enum Thread : int64_t { kCompute, kSendActivations, kSendGradients };

Thread thread_of(ActionKind kind) {
  if (kind == ActionKind::kSendActivation) return kSendActivations;
  if (kind == ActionKind::kSendGradient) return kSendGradients;
  return kCompute;
}

const char* category_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kReceiveActivation:
    case ActionKind::kReceiveGradient:
      return "wait";
    case ActionKind::kSendActivation:
    case ActionKind::kSendGradient:
      return "send";
    case ActionKind::kReduce:
      return "reduce";
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kUpdate:
      return "update";
  }
  return "";
}

}  // namespace

std::string trace_json(const Simulation& simulation) {
  TraceWriter writer;
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    writer.name_process(rank, rank_label(rank, simulation.ranks[rank].placement));
    writer.name_thread(rank, kCompute, "compute");
    writer.name_thread(rank, kSendActivations, "send activations");
    writer.name_thread(rank, kSendGradients, "send gradients");
  }
  for (const SimulatedAction& a : simulation.actions) {
    if (a.end_seconds == a.begin_seconds) continue;  // nothing to see, and there are many
    const bool round = a.action.kind == ActionKind::kReduce || a.action.kind == ActionKind::kUpdate;
    writer.add({a.rank,
                thread_of(a.action.kind),
                to_text(a.action),
                category_of(a.action.kind),
                a.begin_seconds,
                a.end_seconds - a.begin_seconds,
                {{round ? "round" : "minibatch", a.action.index}}});
  }
  return writer.json();
}

}  // namespace pipewright

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

}  // namespace

TraceSpan trace_span(int64_t rank, const Action& action, double begin_seconds, double end_seconds) {
  return {rank,
          thread_of(action.kind),
          to_text(action),
          words_of(action.kind).category,
          begin_seconds,
          end_seconds - begin_seconds,
          {{is_of_round(action.kind) ? "round" : "minibatch", action.index}}};
}

void name_rank(TraceWriter& writer, int64_t rank, Placement placement) {
  writer.name_process(rank, rank_label(rank, placement));
  writer.name_thread(rank, kCompute, "compute");
  writer.name_thread(rank, kSendActivations, "send activations");
  writer.name_thread(rank, kSendGradients, "send gradients");
}

std::string trace_json(const Simulation& simulation) {
  TraceWriter writer;
  for (const SimulatedRank& rank : simulation.ranks) name_rank(writer, rank.number, rank.placement);
  for (const SimulatedAction& a : simulation.actions) {
    if (a.end_seconds == a.begin_seconds) continue;  // nothing to see, and there are many
    writer.add(trace_span(simulation.ranks[a.rank].number, a.action, a.begin_seconds, a.end_seconds));
  }
  return writer.json();
}

}  // namespace pipewright

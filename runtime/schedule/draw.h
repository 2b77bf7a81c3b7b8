// Drawings of schedules and simulations: text for terminals and tests, SVG for people, trace events for
// Perfetto.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"
#include "pages/svg.h"
#include "runtime/schedule/simulate.h"
#include "runtime/schedule/trace_events.h"

namespace pipewright {

/// One row a rank, in stage order and under its number; one column a slot of `slot_seconds`, each showing
/// what computes in the slot's middle (F, B, U, AR;
/// ".." for nothing):
///
///   rank 0  stage 0 replica 0 | F0 F1 B0 .. B1
///
/// Exact for times that are multiples of the slot. CheckError unless slot_seconds is positive and makes at
/// most a million slots.
std::string draw_text(const Simulation& simulation, double slot_seconds);

/// A drawing: one lane a rank, in stage order and under its number, forward, backward, update and
/// reduce in their colours, minibatch numbers where they fit, what the links carry as thin bars below the
/// lane, a time axis. Every bar says what it is as a tool tip.
Svg draw_svg(const Simulation& simulation, const std::string& title);

/// The same of several timelines of the same ranks, one below the other on one time axis, each under its
/// name.
struct NamedTimeline {
  std::string name;
  Simulation timeline;
};
Svg draw_svg(const std::vector<NamedTimeline>& timelines, const std::string& title);

/// A run's trace.json as a timeline: what its ranks did, when (trace_span() turned around). Times begin at 0.
/// Of a run whose plan changed, `minibatches` are those of this plan: the rest is left out. InputError for
/// a document that is no trace of the ranks of `shape`.
Simulation timeline_of_trace(const Json& trace, const PipelineShape& shape,
                             std::optional<Span> minibatches = std::nullopt);
/// The memory of a rank in a run's trace.
struct TracedMemory {
  int64_t rank = 0;                   ///< its number
  std::vector<std::string> purposes;  ///< "weights", "activations", ...
  std::vector<double> seconds;        ///< ascending, on the clock of timeline_of_trace() of the whole trace
  std::vector<std::vector<int64_t>> bytes;  ///< by purpose, at these times
};
/// By ascending rank; none of a trace without. InputError as above.
std::vector<TracedMemory> memory_of_trace(const Json& trace);

/// What a timeline shows from the first forward of minibatch `minibatches.first` until the last of
/// these is complete, from 0 on; actions that reach over its ends are cut.
Simulation window_of(const Simulation& timeline, Span minibatches);

/// Which version of its weights each minibatch of the span reads at each stage that is trained, counted in
/// updates, and how many updates were made since when its own is made: a row for each stage.
Svg draw_versions(const std::string& schedule, const PipelineShape& shape, Span span);

/// How an action of a rank looks in a trace, simulated or real; and the rank's name and rows.
TraceSpan trace_span(int64_t rank, const Action& action, double begin_seconds, double end_seconds);
/// The tensors of a rank in a trace, by purpose.
constexpr const char* kMemoryCounter = "memory";
/// Argument of a forward in a run's trace: how much of it was spent waiting for samples.
constexpr const char* kSamplesWait = "samples_wait_microseconds";
void name_rank(TraceWriter& writer, int64_t rank, Placement placement);

/// Chrome trace events (JSON text), pid = the rank's number; threads: compute, sending of activations,
/// sending of gradients.
std::string trace_json(const Simulation& simulation);

}  // namespace pipewright

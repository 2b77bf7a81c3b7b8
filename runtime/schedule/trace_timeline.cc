// Runs' traces as timelines.
#include <algorithm>
#include <limits>
#include <map>

#include "graph/error.h"
#include "graph/json.h"
#include "runtime/schedule/draw.h"

namespace pipewright {

namespace {

// What a round ends with has no minibatch: it is kept where it ends after the first of them begins, and
// before those of another plan do.
void keep_only(Simulation& timeline, Span minibatches) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto is_of_minibatch = [](const SimulatedAction& a) { return !is_of_round(a.action.kind); };
  double begin = kNever, end = kNever;
  for (const SimulatedAction& a : timeline.actions) {
    if (!is_of_minibatch(a)) continue;
    if (a.action.index >= minibatches.end())
      end = std::min(end, a.begin_seconds);
    else if (a.action.index >= minibatches.first)
      begin = std::min(begin, a.begin_seconds);
  }
  std::erase_if(timeline.actions, [&](const SimulatedAction& a) {
    if (is_of_minibatch(a)) return a.action.index < minibatches.first || a.action.index >= minibatches.end();
    return a.begin_seconds < begin || a.begin_seconds >= end;
  });
}

}  // namespace

Simulation timeline_of_trace(const Json& trace, const PipelineShape& shape, std::optional<Span> minibatches) {
  Simulation timeline;
  std::map<int64_t, int64_t> place_of;  // by number
  for (const Placement& placement : placements(shape)) {
    SimulatedRank rank;
    rank.placement = placement;
    rank.number = shape.number_of(static_cast<int64_t>(timeline.ranks.size()));
    place_of[rank.number] = static_cast<int64_t>(timeline.ranks.size());
    timeline.ranks.push_back(rank);
  }
  for (JsonReader event : JsonReader(trace, "trace.json").objects("traceEvents")) {
    if (event.string("ph") != "X") continue;
    constexpr double kMost = 1e15;  // microseconds
    const auto place = place_of.find(event.integer("pid", 0, std::numeric_limits<int64_t>::max()));
    if (place == place_of.end() && minibatches) continue;  // a rank of another plan
    if (place == place_of.end()) {
      event.fail("pid", "the plan has no stage for that rank", "Give the folder of a run of this plan.");
    }
    SimulatedAction action;
    action.rank = place->second;
    action.begin_seconds = event.number("ts", -kMost, kMost) / 1e6;
    action.end_seconds = action.begin_seconds + event.number("dur", 0, kMost) / 1e6;
    const std::string name = event.string("name");
    // What is no action of a schedule (an evaluation, a checkpoint) has no place in it.
    try {
      const auto actions = parse_actions(name);
      if (actions.size() != 1) continue;
      action.action = actions.front();
      if (event.has("args")) {
        JsonReader arguments = event.object("args");
        if (arguments.has(kSamplesWait))
          action.samples_wait_seconds = arguments.number(kSamplesWait, 0, kMost) / 1e6;
      }
    } catch (const InputError&) {
      continue;
    }
    timeline.actions.push_back(action);
  }
  if (minibatches) keep_only(timeline, *minibatches);
  double begin = timeline.actions.empty() ? 0 : timeline.actions.front().begin_seconds;
  for (const SimulatedAction& action : timeline.actions) begin = std::min(begin, action.begin_seconds);
  for (SimulatedAction& action : timeline.actions) {
    action.begin_seconds -= begin;
    action.end_seconds -= begin;
    timeline.total_seconds = std::max(timeline.total_seconds, action.end_seconds);
  }
  std::stable_sort(timeline.actions.begin(), timeline.actions.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_seconds, a.rank) < std::pair(b.begin_seconds, b.rank);
  });
  return timeline;
}

std::vector<TracedMemory> memory_of_trace(const Json& trace) {
  constexpr double kMost = 1e15;  // microseconds
  std::map<int64_t, TracedMemory> ranks;
  double begin = std::numeric_limits<double>::infinity();
  for (JsonReader event : JsonReader(trace, "trace.json").objects("traceEvents")) {
    const std::string kind = event.string("ph");
    if (kind != "X" && kind != "C") continue;
    const double seconds = event.number("ts", -kMost, kMost) / 1e6;
    if (kind == "X") begin = std::min(begin, seconds);
    if (kind != "C" || event.string("name") != kMemoryCounter) continue;
    const int64_t rank = event.integer("pid", 0, std::numeric_limits<int64_t>::max());
    TracedMemory& memory = ranks[rank];
    memory.rank = rank;
    const Json& values = event.raw("args");
    JsonReader bytes = event.object("args");
    if (memory.purposes.empty()) {
      for (const auto& [purpose, value] : values.items()) memory.purposes.push_back(purpose);
      memory.bytes.resize(memory.purposes.size());
    }
    memory.seconds.push_back(seconds);
    for (size_t i = 0; i < memory.purposes.size(); ++i)
      memory.bytes[i].push_back(bytes.integer(memory.purposes[i], std::numeric_limits<int64_t>::min(),
                                              std::numeric_limits<int64_t>::max()));
  }
  std::vector<TracedMemory> all;
  for (auto& [number, memory] : ranks) {
    for (double& seconds : memory.seconds) seconds -= begin;
    all.push_back(std::move(memory));
  }
  return all;
}

Simulation window_of(const Simulation& timeline, Span minibatches) {
  double begin = timeline.total_seconds, end = 0;
  for (const SimulatedAction& a : timeline.actions) {
    if (is_of_round(a.action.kind) || is_of_message(a.action.kind)) continue;
    if (a.action.index == minibatches.first) begin = std::min(begin, a.begin_seconds);
    if (a.action.index >= minibatches.first && a.action.index < minibatches.end())
      end = std::max(end, a.end_seconds);
  }
  Simulation window = timeline;
  window.actions.clear();
  window.total_seconds = std::max(0.0, end - begin);
  for (SimulatedAction a : timeline.actions) {
    if (a.end_seconds <= begin || a.begin_seconds >= end) continue;
    a.begin_seconds = std::max(a.begin_seconds, begin) - begin;
    a.end_seconds = std::min(a.end_seconds, end) - begin;
    window.actions.push_back(a);
  }
  return window;
}

}  // namespace pipewright

#include "runtime/schedule/time_use.h"

#include <catch2/catch.hpp>
#include <random>

#include "graph/json.h"
#include "runtime/schedule/draw.h"

namespace pipewright {
namespace {

double sum_of(const TimeUse& use) { return use.compute_seconds + use.idle_seconds(); }

/// A timeline of straight stages, a rank each.
Simulation straight(int64_t stages, const std::vector<SimulatedAction>& actions) {
  Simulation timeline;
  timeline.actions = actions;
  for (int64_t s = 0; s < stages; ++s) {
    SimulatedRank rank;
    rank.placement.stage = s;
    rank.number = s;
    timeline.ranks.push_back(rank);
  }
  for (const SimulatedAction& a : actions)
    timeline.total_seconds = std::max(timeline.total_seconds, a.end_seconds);
  return timeline;
}

SimulatedAction action(int64_t rank, const std::string& text, double begin, double end, double waited = 0) {
  return {rank, parse_actions(text).front(), begin, end, waited};
}

}  // namespace

TEST_CASE("time use: each second of a rank is told once, by its cause") {
  const Simulation timeline =
      straight(2, {action(0, "F0", 0, 10, 2), action(0, "SA0", 10, 11), action(1, "RA0", 0, 13),
                   action(1, "F0", 13, 20), action(0, "F1", 11, 19), action(0, "SA1", 19, 20),
                   action(0, "RG0", 20, 31), action(1, "B0", 20, 28), action(1, "SG0", 28, 29),
                   action(0, "B0", 31, 41), action(1, "RA1", 29, 30), action(1, "F1", 32, 35),
                   action(1, "AR0", 35, 37), action(1, "U0", 37, 38), action(0, "U0", 41, 42)});
  const std::vector<TimeUse> uses = time_use(timeline);
  REQUIRE(uses.size() == 2);
  CHECK(uses[0].compute_seconds == Approx(8 + 8 + 10 + 1));
  CHECK(uses[0].samples_seconds == Approx(2));
  CHECK(uses[0].transfer_seconds == Approx(2 + 3));  // two messages handed over; B0 ended at 28, here at 31
  CHECK(uses[0].dependency_seconds == Approx(28 - 20));
  CHECK(uses[0].fill_drain_seconds == Approx(0));
  CHECK(uses[1].fill_drain_seconds == Approx(13 + 42 - 38));
  CHECK(uses[1].dependency_seconds == Approx(0));
  CHECK(uses[1].transfer_seconds == Approx(1 + 1));  // F1 had ended at 19
  CHECK(uses[1].other_seconds == Approx(2));
  CHECK(uses[1].reduce_seconds == Approx(2));
  for (const TimeUse& use : uses) CHECK(sum_of(use) == Approx(timeline.total_seconds));
}

TEST_CASE("time use: adds up to the whole on drawn timelines, read back from their traces") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    PipelineShape shape;
    const auto stages = 1 + random() % 4;
    std::vector<StageTimes> times;
    for (size_t s = 0; s < stages; ++s) {
      shape.replicas.push_back(1 + static_cast<int64_t>(random() % 2));
      shape.in_flight.push_back(static_cast<int64_t>(stages - s) + static_cast<int64_t>(random() % 2));
      StageTimes stage;
      stage.forward_seconds = 1e-3 * (1 + random() % 9);
      stage.backward_seconds = 1e-3 * (1 + random() % 9);
      stage.send_activation_seconds = 1e-3 * static_cast<double>(random() % 3);
      stage.send_gradient_seconds = 1e-3 * static_cast<double>(random() % 3);
      times.push_back(stage);
    }
    const Simulation run = simulate("1f1b", shape, times, {0, 12});
    Simulation read = timeline_of_trace(parse_json(trace_json(run), "trace"), shape);
    // A simulated rank sends beside computing, a real one hands over between two actions.
    std::erase_if(read.actions, [](const SimulatedAction& a) {
      return a.action.kind == ActionKind::kSendActivation || a.action.kind == ActionKind::kSendGradient;
    });
    const std::vector<TimeUse> uses = time_use(read);
    for (size_t r = 0; r < uses.size(); ++r) {
      CHECK(sum_of(uses[r]) == Approx(read.total_seconds));
      CHECK(uses[r].compute_seconds == Approx(run.ranks[r].busy_seconds));
      for (const double part : {uses[r].dependency_seconds, uses[r].transfer_seconds, uses[r].reduce_seconds,
                                uses[r].fill_drain_seconds, uses[r].other_seconds})
        CHECK(part >= -1e-12);
    }
  }
  CHECK(time_use(straight(2, {})).size() == 2);
}

TEST_CASE("a trace's counters come back as the memory of its ranks, on the clock of its timeline") {
  TraceWriter writer;
  writer.add(trace_span(1, {ActionKind::kForward, 0}, 5, 6));
  writer.add_counter(1, kMemoryCounter, 6, {{"weights", 100}, {"activations", 50}});
  writer.add_counter(1, kMemoryCounter, 7.5, {{"weights", 100}, {"activations", 0}});
  writer.add_counter(1, "something else", 7, {{"x", 1}});
  const std::vector<TracedMemory> all = memory_of_trace(parse_json(writer.json(), "trace"));
  REQUIRE(all.size() == 1);
  CHECK(all[0].rank == 1);
  CHECK(all[0].purposes == std::vector<std::string>{"weights", "activations"});
  REQUIRE(all[0].seconds.size() == 2);
  CHECK(all[0].seconds[0] == Approx(1));
  CHECK(all[0].seconds[1] == Approx(2.5));
  CHECK(all[0].bytes == std::vector<std::vector<int64_t>>{{100, 100}, {50, 0}});
  CHECK(memory_of_trace(parse_json("{\"traceEvents\":[]}", "trace")).empty());
}

TEST_CASE("the strip of weight versions shows each minibatch of each stage, and how far it is behind") {
  PipelineShape shape;
  shape.replicas = {1, 1, 1};
  shape.in_flight = {3, 2, 1};
  const std::string svg = draw_versions("1f1b", shape, {0, 8}).file();
  CHECK(svg.find("stage 0, minibatch 7: reads version 5, 2 updates behind") != std::string::npos);
  CHECK(svg.find("stage 1, minibatch 7: reads version 6, 1 update behind") != std::string::npos);
  CHECK(svg.find("stage 2, minibatch 7: reads version 7, 0 updates behind") != std::string::npos);
  // The legend has its place, however few minibatches there are.
  const auto width_of = [](const std::string& file) {
    const std::string words = "viewBox=\"0 0 ";
    return std::stod(file.substr(file.find(words) + words.size()));
  };
  const std::string few = draw_versions("1f1b", shape, {0, 2}).file();
  const size_t last = few.rfind("x=\"", few.find(">4 or more<"));
  CHECK(std::stod(few.substr(last + 3)) + text_width("4 or more") <= width_of(few));
}

}  // namespace pipewright

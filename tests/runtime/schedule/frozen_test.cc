// Frozen stages: they run forward only, and what is behind them does not know of them.
#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "runtime/schedule/check.h"
#include "runtime/schedule/cycle_time.h"
#include "runtime/schedule/draw.h"
#include "runtime/schedule/memory.h"
#include "runtime/schedule/versions.h"
#include "tests/runtime/schedule/shapes.h"
#include "tests/support/error_of.h"

namespace pipewright {
namespace {

using testing::dashed;
using Numbers = std::vector<int64_t>;

struct FrozenCase {
  std::string schedule;
  PipelineShape shape;
  std::vector<StageTimes> times;
};

std::string words(const FrozenCase& c) {
  return c.schedule + " " + dashed(c.shape.replicas) + " depths " + dashed(c.shape.in_flight) + " frozen " +
         std::to_string(c.shape.frozen_stages) + " weights " + to_text(c.shape.weights) + " microbatches " +
         std::to_string(c.shape.microbatches);
}

/// The stages that are trained, alone.
PipelineShape behind_frozen(PipelineShape shape) {
  const auto first = static_cast<std::ptrdiff_t>(shape.frozen_stages);
  shape.replicas.erase(shape.replicas.begin(), shape.replicas.begin() + first);
  shape.in_flight.erase(shape.in_flight.begin(), shape.in_flight.begin() + first);
  if (!shape.shares.empty()) shape.shares.erase(shape.shares.begin(), shape.shares.begin() + first);
  shape.frozen_stages = 0;
  return shape;
}

FrozenCase random_frozen_case(std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<int64_t>(random() % n); };
  const auto seconds = [&] { return 0.25 * static_cast<double>(1 + below(8)); };
  struct Kind {
    const char* schedule;
    WeightRule weights;
  };
  const Kind kinds[] = {{"1f1b", WeightRule::kStash},       {"1f1b", WeightRule::kVertical},
                        {"1f1b", WeightRule::kTwoVersions}, {"model-parallel", WeightRule::kStash},
                        {"gpipe", WeightRule::kFlush},      {"1f1b-flush", WeightRule::kFlush},
                        {"zb-h1", WeightRule::kFlush},      {"1f1b", WeightRule::kPaci},
                        {"1f1b", WeightRule::kPredict}};
  const Kind& kind = kinds[below(9)];
  FrozenCase c;
  c.schedule = kind.schedule;
  c.shape.weights = kind.weights;
  const int64_t stages = 2 + below(4);
  c.shape.frozen_stages = 1 + below(static_cast<size_t>(stages - 1));
  const int64_t replicas_of_all = 1 + below(3);
  for (int64_t s = 0; s < stages; ++s) {
    const bool equal = kind.weights == WeightRule::kVertical && s >= c.shape.frozen_stages;
    c.shape.replicas.push_back(equal ? replicas_of_all : 1 + below(3));
    c.shape.in_flight.push_back(1 + below(5));
    StageTimes times;
    times.forward_seconds = seconds();
    times.backward_seconds = seconds() + 0.5;
    times.backward_weight_seconds = 0.5;
    times.reduce_seconds = seconds();
    times.step_seconds = seconds();
    times.send_activation_seconds = below(2) == 0 ? 0 : seconds();
    times.send_gradient_seconds = below(2) == 0 ? 0 : seconds();
    times.recompute_seconds = below(2) == 0 ? 0 : seconds();
    c.times.push_back(times);
  }
  c.shape.microbatches = 8 + below(8);
  if (c.schedule == "gpipe")  // it holds all of an update
    for (int64_t s = c.shape.frozen_stages; s < stages; ++s)
      c.shape.in_flight[static_cast<size_t>(s)] = c.shape.microbatches;
  if (kind.weights == WeightRule::kTwoVersions) c.shape.microbatches = 20;
  return c;
}

TEST_CASE("frozen stages leave out what nobody waits for, under every schedule and weight rule") {
  std::mt19937_64 random(2101);
  for (int round = 0; round < 400; ++round) {
    const FrozenCase c = random_frozen_case(random);
    CAPTURE(words(c));
    const PipelineShape trained = behind_frozen(c.shape);
    const Span span{static_cast<int64_t>(random() % 7), static_cast<int64_t>(20 + random() % 40)};
    const ScheduleCheck check = check_schedule(c.schedule, c.shape, span);
    REQUIRE(check.problem.empty());
    REQUIRE(check.completes);
    const ScheduleCheck alone = check_schedule(c.schedule, trained, span);
    REQUIRE(alone.completes);
    size_t at = 0;
    for (const RankCheck& rank : check.ranks) {
      if (rank.placement.stage < c.shape.frozen_stages) {
        CHECK(rank.peak_in_flight == 1);
        CHECK(rank.peak_versions == 1);
        continue;
      }
      const RankCheck& same = alone.ranks.at(at++);  // as if there were no stages before it
      CHECK(rank.peak_in_flight == same.peak_in_flight);
      CHECK(rank.peak_versions == same.peak_versions);
      CHECK(rank.forward_version == same.forward_version);
    }
    const auto lists = schedule_of_all(c.schedule, c.shape, span);
    const std::vector<Placement> ranks = placements(c.shape);
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      const bool frozen = ranks[rank].stage < c.shape.frozen_stages;
      const bool behind = ranks[rank].stage == c.shape.frozen_stages;
      for (const Action& action : lists[rank]) {
        if (frozen) CHECK(action.kind != ActionKind::kReceiveGradient);
        if (frozen) CHECK(action.kind != ActionKind::kReduce);
        if (frozen || behind) CHECK(action.kind != ActionKind::kSendGradient);
      }
    }
  }
}

TEST_CASE(
    "simulated: frozen stages take their forwards alone, and only they or their links can slow the rest") {
  std::mt19937_64 random(2102);
  for (int round = 0; round < 150; ++round) {
    FrozenCase c = random_frozen_case(random);
    CAPTURE(words(c));
    const auto first = static_cast<size_t>(c.shape.frozen_stages);
    const PipelineShape trained = behind_frozen(c.shape);
    const std::vector<StageTimes> behind(c.times.begin() + c.shape.frozen_stages, c.times.end());
    const Span span{0, 240};
    const double alone = simulate(c.schedule, trained, behind, span).total_seconds;
    const double all = simulate(c.schedule, c.shape, c.times, span).total_seconds;
    CHECK(all >= alone * (1 - 1e-9));
    double slowest = 0, before = 0;  // of a frozen rank or link; what the first minibatch takes
    for (size_t s = 0; s < first; ++s) {
      const double replicas = static_cast<double>(c.shape.replicas[s]);
      slowest = std::max(
          {slowest, c.times[s].forward_seconds / replicas, c.times[s].send_activation_seconds / replicas});
      before += c.times[s].forward_seconds + c.times[s].send_activation_seconds;
    }
    CHECK(all >= slowest * 240);
    for (StageTimes& times : c.times) times.backward_seconds += 0.125;  // of frozen stages it does not count
    for (size_t s = first; s < c.times.size(); ++s) c.times[s].backward_seconds -= 0.125;
    c.times[first].send_gradient_seconds += 1;
    CHECK(simulate(c.schedule, c.shape, c.times, span).total_seconds == Approx(all));
    for (size_t s = 0; s < first; ++s) c.times[s].forward_seconds = c.times[s].send_activation_seconds = 0;
    CHECK(simulate(c.schedule, c.shape, c.times, span).total_seconds == Approx(alone));
    CHECK(before > 0);
  }
}

TEST_CASE("the long run of a pipeline with frozen stages is the slowest of its parts") {
  std::mt19937_64 random(2103);
  for (int round = 0; round < 100; ++round) {
    FrozenCase c = random_frozen_case(random);
    if (c.schedule != "1f1b") continue;
    CAPTURE(words(c));
    const std::optional<double> endless = endless_minibatch_seconds(c.shape, c.times);
    if (!endless) continue;
    const std::vector<StageTimes> behind(c.times.begin() + c.shape.frozen_stages, c.times.end());
    const std::optional<double> alone = endless_minibatch_seconds(behind_frozen(c.shape), behind);
    REQUIRE(alone);
    double slowest = *alone;
    for (int64_t s = 0; s < c.shape.frozen_stages; ++s) {
      const auto stage = static_cast<size_t>(s);
      const double replicas = static_cast<double>(c.shape.replicas[stage]);
      slowest = std::max({slowest, c.times[stage].forward_seconds / replicas,
                          c.times[stage].send_activation_seconds / replicas});
    }
    CHECK(*endless == Approx(slowest));
    // Room for two messages costs next to nothing.
    const double simulated = steady_minibatch_seconds(c.schedule, c.shape, c.times, {0, 600});
    CHECK(simulated > *endless * 0.98);
    CHECK(simulated < *endless * 1.1);
  }
}

TEST_CASE("chosen depths: frozen stages take one, and leave the others what they need") {
  std::mt19937_64 random(2104);
  int chosen = 0;
  for (int round = 0; round < 60 && chosen < 25; ++round) {
    FrozenCase c = random_frozen_case(random);
    if (c.schedule != "1f1b" && c.schedule != "1f1b-flush") continue;
    ++chosen;
    c.shape.in_flight.assign(c.shape.in_flight.size(), 12);
    CAPTURE(words(c));
    const Numbers depths = choose_in_flight(c.schedule, c.shape, c.times);
    for (int64_t s = 0; s < c.shape.frozen_stages; ++s) CHECK(depths[static_cast<size_t>(s)] == 1);
    PipelineShape shape = c.shape;
    shape.in_flight = depths;
    CHECK(schedule_named(c.schedule).depths(shape) ==
          (c.schedule == "1f1b" ? depths : schedule_named(c.schedule).depths(shape)));
    CHECK_NOTHROW(check_schedule_shape(c.schedule, shape));
    const PipelineShape trained = behind_frozen(c.shape);
    const std::vector<StageTimes> behind(c.times.begin() + c.shape.frozen_stages, c.times.end());
    PipelineShape same = trained;
    same.in_flight = choose_in_flight(c.schedule, trained, behind);
    double slowest = settled_minibatch_seconds(c.schedule, same, behind);
    for (int64_t s = 0; s < c.shape.frozen_stages; ++s) {
      const auto stage = static_cast<size_t>(s);
      const double replicas = static_cast<double>(c.shape.replicas[stage]);
      slowest = std::max({slowest, c.times[stage].forward_seconds / replicas,
                          c.times[stage].send_activation_seconds / replicas});
    }
    CHECK(settled_minibatch_seconds(c.schedule, shape, c.times) <= slowest * 1.1);
  }
  CHECK(chosen > 10);
}

TEST_CASE("a drained pipeline behind frozen stages is not given up for the time that these fill once") {
  std::mt19937_64 random(2105);
  int drained = 0;
  for (int round = 0; round < 200 && drained < 40; ++round) {
    const FrozenCase c = random_frozen_case(random);
    if (c.schedule != "1f1b-flush" && c.schedule != "gpipe") continue;
    ++drained;
    CAPTURE(words(c));
    const double seconds = settled_minibatch_seconds(c.schedule, c.shape, c.times);
    const double limit = seconds * 1.02;
    CHECK(settled_minibatch_seconds(c.schedule, c.shape, c.times, {}, nullptr, limit) == Approx(seconds));
  }
  CHECK(drained > 20);
}

TEST_CASE("a frozen stage holds one version, no gradients and nothing for a backward") {
  PipelineShape shape{{1, 1}, {1, 1}};
  shape.frozen_stages = 1;
  StageTimes unit{1, 1, 0, 0, 0, 0};
  const Span span{0, 4};
  const std::vector<StageBytes> bytes = {{100, 10, 7, false, 0, 3, 5}, {1000, 0, 40, false, 0, 3, 5}};
  const Simulation simulation = simulate("1f1b", shape, {unit, unit}, span);
  const auto memory = memory_over_time(simulation, "1f1b", shape, span, bytes);
  CHECK(memory[0].points.front().bytes == 100 + 7);  // of the first forward
  CHECK(memory[0].points.back().bytes == 100);
  CHECK(memory[0].peak_bytes <= 100 + 7 + 3 * 3);  // of one forward, and messages on their way
  CHECK(memory[0].peak_versions == Numbers{1});
  CHECK(memory[1].points.back().bytes == 1000);
}

TEST_CASE("drawn: 1f1b, the first of three stages frozen") {
  PipelineShape shape{{1, 1, 1}, {1, 2, 1}};
  shape.frozen_stages = 1;
  StageTimes unit{1, 1, 0, 0, 0, 0};
  CHECK(draw_text(simulate("1f1b", shape, {unit, unit, unit}, 4), 1) ==
        "rank 0  stage 0 replica 0 | F0 F1 F2 F3 .. .. .. .. .. .. ..\n"
        "rank 1  stage 1 replica 0 | .. F0 F1 .. B0 F2 B1 F3 B2 .. B3\n"
        "rank 2  stage 2 replica 0 | .. .. F0 B0 F1 B1 F2 B2 F3 B3 ..\n");
  CHECK(to_text(schedule_of_rank("1f1b", shape, 0, 0, {0, 2})) == "F0 SA0 B0 U0 F1 SA1 B1 U1");
  CHECK(to_text(schedule_of_rank("1f1b", shape, 1, 0, {0, 2})) ==
        "RA0 F0 SA0 RA1 F1 SA1 RG0 B0 U0 RG1 B1 U1");
}

TEST_CASE("frozen stages that cannot be are refused") {
  PipelineShape shape{{1, 1, 1, 1}, {8, 8, 8, 8}};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = 4;
  shape.stages_per_rank = 2;
  shape.frozen_stages = 1;
  CHECK(testing::error_of<PlanError>([&] { check_schedule_shape("interleaved", shape); }) ==
        "pipeline: schedule 'interleaved' has no frozen stages, got 1");
  PipelineShape vertical{{2, 1, 1}, {1, 2, 1}};
  vertical.weights = WeightRule::kVertical;
  vertical.frozen_stages = 1;
  CHECK_NOTHROW(check_schedule_shape("1f1b", vertical));
  vertical.frozen_stages = 0;
  CHECK_THROWS_AS(check_schedule_shape("1f1b", vertical), PlanError);
}

}  // namespace
}  // namespace pipewright

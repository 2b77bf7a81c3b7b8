// The simulator against the closed forms of the literature: idle times, bubbles, activations, versions.
#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/schedule/check.h"
#include "runtime/schedule/memory.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {
namespace {

using Numbers = std::vector<int64_t>;

struct Parts {
  double forward, input, weight;  // of a whole rank, seconds
  double backward() const { return input + weight; }
  double all() const { return forward + input + weight; }
};

PipelineShape straight(int64_t ranks, int64_t microbatches, int64_t depth, int64_t stages_per_rank = 1) {
  PipelineShape shape{Numbers(ranks * stages_per_rank, 1), Numbers(ranks * stages_per_rank, depth)};
  shape.weights = WeightRule::kFlush;
  shape.microbatches = microbatches;
  shape.stages_per_rank = stages_per_rank;
  return shape;
}

Simulation run(const std::string& schedule, const PipelineShape& shape, const Parts& parts, int64_t updates) {
  const auto several = static_cast<double>(shape.stages_per_rank);
  StageTimes times;
  times.forward_seconds = parts.forward / several;
  times.backward_seconds = parts.backward() / several;
  times.backward_weight_seconds = parts.weight / several;
  return simulate(schedule, shape, std::vector<StageTimes>(shape.replicas.size(), times),
                  updates * shape.microbatches);
}

// In a steady state without a barrier between updates.
double idle_of_an_update(const std::string& schedule, const PipelineShape& shape, const Parts& parts) {
  const auto m = static_cast<double>(shape.microbatches);
  return m * (run(schedule, shape, parts, 12).steady_minibatch_seconds - parts.all());
}

const std::vector<Parts> kParts = {{1, 1, 1}, {1, 1.2, 0.8}, {2, 3, 1}, {0.5, 0.75, 0.25}};

TEST_CASE("closed forms: gpipe and 1f1b-flush idle for (p - 1)(F + B), a bubble of (p - 1) / (m + p - 1)") {
  for (const Parts& parts : kParts)
    for (int64_t p = 1; p <= 6; ++p)
      for (const int64_t m : {1, 2, 5, 8, 32}) {
        CAPTURE(p, m, parts.forward, parts.input, parts.weight);
        const double idle = static_cast<double>(p - 1) * parts.all();
        const double bubble = static_cast<double>(p - 1) / static_cast<double>(m + p - 1);
        for (const char* schedule : {"gpipe", "1f1b-flush"}) {
          const PipelineShape shape = straight(p, m, std::max(p, m));
          CHECK(idle_of_an_update(schedule, shape, parts) == Approx(idle).margin(1e-9));
          const Simulation one = run(schedule, shape, parts, 1);
          CHECK(one.total_seconds == Approx(static_cast<double>(m + p - 1) * parts.all()));
          for (const SimulatedRank& rank : one.ranks)
            CHECK(1 - rank.busy_seconds / one.total_seconds == Approx(bubble).margin(1e-9));
        }
        PipelineShape falling = straight(p, m, 1);
        for (int64_t stage = 0; stage < p; ++stage) falling.in_flight[stage] = p - stage;
        const Simulation one = run("1f1b-flush", falling, parts, 1);
        CHECK(one.total_seconds == Approx(static_cast<double>(m + p - 1) * parts.all()));
        for (int64_t stage = 0; stage < p; ++stage)
          CHECK(one.ranks[stage].peak_in_flight == std::min(m, p - stage));
        for (const SimulatedRank& rank : run("gpipe", straight(p, m, m), parts, 1).ranks)
          CHECK(rank.peak_in_flight == m);
      }
}

TEST_CASE("closed forms: interleaved idles for (p - 1)(F + B) / v, a bubble of (p - 1) / (v m + p - 1)") {
  for (const Parts& parts : kParts)
    for (int64_t p = 2; p <= 6; ++p)
      for (const int64_t v : {1, 2, 3, 4})
        for (const int64_t m : {p, 2 * p, 4 * p}) {
          CAPTURE(p, v, m, parts.forward, parts.input, parts.weight);
          const PipelineShape shape = straight(p, m, 1000, v);
          const Simulation one = run("interleaved", shape, parts, 1);
          const double bubble = static_cast<double>(p - 1) / static_cast<double>(v * m + p - 1);
          for (int64_t rank = 0; rank < p; ++rank) {
            CHECK(1 - one.ranks[rank].busy_seconds / one.total_seconds == Approx(bubble));
            CHECK(one.ranks[rank].peak_in_flight == std::min(v * m, (v - 1) * p + 2 * (p - 1 - rank) + 1));
          }
          CHECK(idle_of_an_update("interleaved", shape, parts) ==
                Approx(static_cast<double>(p - 1) * parts.all() / static_cast<double>(v)));
        }
}

TEST_CASE("closed forms: interleaved with any number of microbatches from p on is as fast") {
  for (int64_t p = 2; p <= 5; ++p)
    for (const int64_t v : {2, 3})
      for (int64_t m = p; m <= 4 * p + 1; ++m) {
        CAPTURE(p, v, m);
        const double total = run("interleaved", straight(p, m, 1000, v), {1, 1, 1}, 1).total_seconds;
        const double ideal =
            3 * (static_cast<double>(m) + static_cast<double>(p - 1) / static_cast<double>(v));
        CHECK(total == Approx(ideal));
      }
}

TEST_CASE(
    "closed forms: zb-h1 idles for (p - 1)(F + B - 2W), with depth 2p - 1 for (p - 1) max(0, F + B - 3W)") {
  for (const Parts& parts : {Parts{1, 1, 1}, Parts{1, 1.2, 0.8}, Parts{1, 1.5, 0.5}})
    for (int64_t p = 1; p <= 6; ++p)
      for (const int64_t m : {2 * p, 4 * p, 4 * p + 3}) {
        CAPTURE(p, m, parts.forward, parts.input, parts.weight);
        const double h1 = parts.forward + parts.backward() - 2 * parts.weight;
        const double h2 = std::max(0.0, parts.forward + parts.backward() - 3 * parts.weight);
        const auto gaps = static_cast<double>(p - 1);
        CHECK(idle_of_an_update("zb-h1", straight(p, m, p), parts) == Approx(gaps * h1).margin(1e-9));
        CHECK(idle_of_an_update("zb-h1", straight(p, m, 2 * p - 1), parts) == Approx(gaps * h2).margin(1e-9));
        for (const SimulatedRank& rank : run("zb-h1", straight(p, m, p), parts, 1).ranks)
          CHECK(rank.peak_in_flight == p);
      }
}

TEST_CASE("closed forms: bubble fractions of the schedules side by side") {
  struct Row {
    int64_t p, m;
    Parts parts;
    double flush, interleaved, h1, h2;
  };
  for (const Row& row :
       {Row{2, 4, {1, 1, 1}, .200, .111, .077, 0}, Row{2, 8, {1, 1, 1}, .111, .059, .040, 0},
        Row{4, 8, {1, 1, 1}, .273, .158, .111, 0}, Row{4, 16, {1, 1, 1}, .158, .086, .059, 0},
        Row{8, 32, {1, 1, 1}, .179, .099, .068, 0}, Row{2, 4, {1, 1.2, .8}, .200, .111, .104, .048},
        Row{4, 8, {1, 1.2, .8}, .273, .158, .149, .070}, Row{8, 32, {1, 1.2, .8}, .179, .099, .093, .042}}) {
    CAPTURE(row.p, row.m);
    const auto bubble = [&](const char* schedule, int64_t depth, int64_t several) {
      const double idle = idle_of_an_update(schedule, straight(row.p, row.m, depth, several), row.parts);
      return idle / (idle + static_cast<double>(row.m) * row.parts.all());
    };
    CHECK(bubble("gpipe", row.m, 1) == Approx(row.flush).margin(5e-4));
    PipelineShape falling = straight(row.p, row.m, 1);
    falling.in_flight = pipedream_in_flight(falling.replicas);
    const double idle = idle_of_an_update("1f1b-flush", falling, row.parts);
    CHECK(idle / (idle + static_cast<double>(row.m) * row.parts.all()) == Approx(row.flush).margin(5e-4));
    CHECK(bubble("interleaved", 1000, 2) == Approx(row.interleaved).margin(5e-4));
    CHECK(bubble("zb-h1", row.p, 1) == Approx(row.h1).margin(5e-4));
    CHECK(bubble("zb-h1", 2 * row.p - 1, 1) == Approx(row.h2).margin(5e-4));
  }
}

TEST_CASE("closed forms: asynchronous 1f1b has no idle time, p - s in flight, versions by rule") {
  const Parts parts{1, 1, 1};
  for (int64_t p = 1; p <= 6; ++p) {
    CAPTURE(p);
    PipelineShape shape{Numbers(p, 1), pipedream_in_flight(Numbers(p, 1))};
    const auto versions = [&] {
      Numbers peaks;
      for (const RankCheck& rank : check_schedule("1f1b", shape, {0, 60}).ranks) {
        CHECK(rank.peak_in_flight == p - rank.placement.stage);
        peaks.push_back(rank.peak_versions);
      }
      return peaks;
    };
    const Simulation simulation = run("1f1b", shape, parts, 60);
    CHECK(simulation.steady_minibatch_seconds == Approx(3));
    CHECK(simulation.total_seconds == Approx(3.0 * static_cast<double>(60 + p - 1)));
    CHECK(versions() == pipedream_in_flight(Numbers(p, 1)));
    shape.weights = WeightRule::kVertical;
    CHECK(versions() == Numbers(p, p));
    shape.weights = WeightRule::kTwoVersions;
    shape.microbatches = std::max<int64_t>(1, p);
    CHECK(run("1f1b", shape, parts, 60).steady_minibatch_seconds == Approx(3));
    CHECK(versions() == Numbers(p, 2));
  }
}

TEST_CASE("closed forms: unequal stages run at the pace of the slowest, uneven shares as the sum of speeds") {
  const std::vector<StageTimes> times = {{1, 2}, {4, 6}, {0.5, 0.5}};
  const PipelineShape shape{{1, 1, 1}, {6, 3, 1}};
  CHECK(simulate("1f1b", shape, times, 200).steady_minibatch_seconds == Approx(10));
  // One update every 4 minibatches of two devices, one three times as fast: the simulator has one time for a
  // stage, so the share says who works more.
  PipelineShape uneven{{2}, {1}};
  uneven.shares = {{3, 1}};
  CHECK(simulate("1f1b", uneven, {{1, 2}}, 400).steady_minibatch_seconds == Approx(9.0 / 4));
  uneven.shares = {{1, 1}};
  CHECK(simulate("1f1b", uneven, {{1, 2}}, 400).steady_minibatch_seconds == Approx(3.0 / 2));
}

TEST_CASE("accumulation: one reduce and one step for several rounds") {
  PipelineShape shape{{2}, {1}};
  const std::vector<StageTimes> times = {{1, 2, 0.75, 0.25}};
  CHECK(simulate("1f1b", shape, times, 240).steady_minibatch_seconds == Approx(4.0 / 2));
  shape.accumulation = 4;
  CHECK(simulate("1f1b", shape, times, 240).steady_minibatch_seconds == Approx((4 * 3 + 1) / 8.0));
  CHECK(bottleneck_seconds(shape, times) == Approx((4 * 3 + 1) / 8.0));
}

TEST_CASE("recompute: the forward once more before the backward") {
  PipelineShape shape{{1, 1}, {2, 1}};
  std::vector<StageTimes> times(2, StageTimes{1, 2});
  times[0].recompute_seconds = 1;
  CHECK(simulate("1f1b", shape, times, 100).steady_minibatch_seconds == Approx(4));
  CHECK(bottleneck_seconds(shape, times) == Approx(4));
  shape = straight(2, 4, 2);
  times.assign(2, StageTimes{1, 2, 0, 0, 0, 0, 1, 1});  // F 1, BI 1 + 1 again, BW 1
  CHECK(simulate("zb-h1", shape, times, 4).ranks[0].busy_seconds == Approx(16));
}

PipelineShape v_shaped(const std::string& schedule, int64_t ranks, int64_t microbatches) {
  PipelineShape shape = straight(ranks, microbatches, 1, 2);
  shape.v_shaped = true;
  shape.in_flight = schedule_named(schedule).depths(shape);
  return shape;
}

TEST_CASE("closed forms: zbv idles for (p - 1)(I - W) and never more than zb-h1, every rank holds as much") {
  for (const Parts& parts : kParts)
    for (int64_t p = 2; p <= 6; ++p)
      for (const int64_t m : {2 * p - 1, 2 * p, 5 * p}) {
        CAPTURE(p, m, parts.forward, parts.input, parts.weight);
        const double idle = idle_of_an_update("zbv", v_shaped("zbv", p, m), parts);
        CHECK(idle == Approx(static_cast<double>(p - 1) * (parts.input - parts.weight)).margin(1e-9));
        CHECK(idle <= idle_of_an_update("zb-h1", straight(p, m, p), parts) + 1e-9);
        const PipelineShape shape = v_shaped("zbv", p, m);
        for (int64_t stage = 0; stage < 2 * p; ++stage)
          CHECK(shape.in_flight[static_cast<size_t>(stage)] == std::min(m, 2 * p - stage));
        // DualPipeV's pairs run one after the other here.
        CHECK(idle <= idle_of_an_update("dualpipev", v_shaped("dualpipev", p, m), parts) + 1e-9);
      }
}

TEST_CASE("memory: activations by the closed forms, versions, messages, recompute") {
  const int64_t p = 4, m = 8;
  const auto peaks = [&](const char* schedule, const PipelineShape& shape, const StageBytes& bytes) {
    const Span span{0, 3 * m};
    const auto several = static_cast<double>(shape.stages_per_rank);
    const StageTimes times{1 / several, 2 / several, 0, 0.25, 0.125, 0.125, 1 / several};
    const Simulation simulation =
        simulate(schedule, shape, std::vector<StageTimes>(shape.replicas.size(), times), span);
    Numbers peaks;
    for (const RankMemory& rank : memory_over_time(simulation, schedule, shape, span,
                                                   std::vector<StageBytes>(shape.replicas.size(), bytes))) {
      peaks.push_back(rank.peak_bytes);
      CHECK(rank.points.back().bytes == bytes.fixed_bytes * shape.stages_per_rank);  // nothing is left over
    }
    return peaks;
  };
  StageBytes saved;
  saved.saved_bytes = 10;
  saved.fixed_bytes = 1000;
  CHECK(peaks("gpipe", straight(p, m, m), saved) == Numbers{1080, 1080, 1080, 1080});
  PipelineShape falling = straight(p, m, 1);
  falling.in_flight = {4, 3, 2, 1};
  CHECK(peaks("1f1b-flush", falling, saved) == Numbers{1040, 1030, 1020, 1010});
  CHECK(peaks("zb-h1", straight(p, m, p), saved) == Numbers{1040, 1040, 1040, 1040});
  CHECK(peaks("interleaved", straight(p, m, m, 2), saved) == Numbers{2110, 2090, 2070, 2050});
  CHECK(peaks("zbv", v_shaped("zbv", p, m), saved) == Numbers{2080, 2080, 2080, 2080});
  saved.recompute = true;
  saved.kept_bytes = 1;  // all but one are at what is kept
  CHECK(peaks("gpipe", straight(p, m, m), saved) == Numbers{1017, 1017, 1017, 1017});

  // Gradients of weights come with the first backward, when a minibatch goes, and stay until the update.
  StageBytes gradients;
  gradients.saved_bytes = 10;
  gradients.weight_gradient_bytes = 100;
  CHECK(peaks("gpipe", straight(p, m, m), gradients) == Numbers{170, 170, 170, 170});
  gradients.weight_gradient_bytes = 4;
  CHECK(peaks("gpipe", straight(p, m, m), gradients) == Numbers{80, 80, 80, 80});

  StageBytes versions;
  versions.version_bytes = 100;
  falling.weights = WeightRule::kStash;
  // An update is in place, or where the oldest version was: with depth 1 there is never a second one.
  CHECK(peaks("1f1b", falling, versions) == Numbers{300, 200, 100, 0});
  falling.weights = WeightRule::kVertical;
  CHECK(peaks("1f1b", falling, versions) == Numbers{300, 300, 300, 300});
  falling.weights = WeightRule::kTwoVersions;
  CHECK(peaks("1f1b", falling, versions) == Numbers{100, 100, 100, 100});

  StageBytes messages;
  messages.activation_bytes = 3;
  messages.gradient_bytes = 5;
  // One activation goes out while the next one is made; a gradient that comes is held while it is used.
  const Numbers model_parallel = peaks("model-parallel", {{1, 1}, {1, 1}}, messages);
  CHECK(model_parallel == Numbers{5, 5});
}

}  // namespace
}  // namespace pipewright

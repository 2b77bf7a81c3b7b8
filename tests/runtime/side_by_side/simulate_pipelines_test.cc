// Pipelines on a virtual clock, against the simulator of plans where that can say the same, and against what
// must follow from each rule.
#include "runtime/side_by_side/simulate_pipelines.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "graph/random.h"
#include "runtime/schedule/disturbance.h"

using namespace pipewright;

namespace {

struct RandomPipelines {
  explicit RandomPipelines(uint64_t seed) : random({seed, 5}) {
    const auto stages = between(1, 4);
    what.pipelines = between(2, 4);
    const std::string schedules[] = {"1f1b", "1f1b", "gpipe", "1f1b-flush", "model-parallel"};
    what.schedule = schedules[random.below(5)];
    what.pipeline.replicas.assign(static_cast<size_t>(stages), 1);
    const bool flush = what.schedule == "gpipe" || what.schedule == "1f1b-flush";
    what.pipeline.weights = flush ? WeightRule::kFlush : WeightRule::kStash;
    what.pipeline.microbatches = flush ? between(1, 4) : 1;
    what.pipeline.accumulation = flush ? 1 : between(1, 3);
    for (int64_t s = 0; s < stages; ++s) {
      int64_t depth = what.schedule == "gpipe" ? what.pipeline.microbatches : stages - s;
      if (what.schedule == "1f1b-flush") depth = std::min(depth, what.pipeline.microbatches);
      if (what.schedule == "model-parallel") depth = 1;
      what.pipeline.in_flight.push_back(depth);
      StageTimes times;
      times.forward_seconds = 1 + random.uniform();
      times.backward_seconds = 1 + 2 * random.uniform();
      times.step_seconds = random.uniform() / 2;
      times.send_activation_seconds = random.uniform() / 2;
      times.send_gradient_seconds = random.uniform() / 2;
      times.reduce_seconds = random.uniform();
      what.times.push_back(times);
      what.ranks.emplace_back();
      for (int64_t p = 0; p < what.pipelines; ++p) what.ranks.back().push_back(s * what.pipelines + p);
    }
    const int64_t interval = flush ? what.pipeline.microbatches : what.pipeline.accumulation;
    what.minibatches = what.pipelines * interval * between(3, 12);
    what.seed = seed;
  }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random.below(static_cast<uint64_t>(most - least + 1)));
  }
  SimulatedPipelines run(const std::string& sync) {
    what.sync = sync;
    const SimulatedPipelines result = simulate_pipelines(what);
    CHECK(std::accumulate(result.minibatches.begin(), result.minibatches.end(), int64_t{0}) ==
          what.minibatches);
    return result;
  }

  KeyedRandom random;
  PipelinesToSimulate what;
};

// N stages' pipelines of equal times whose links cost nothing.
PipelinesToSimulate even(int64_t pipelines, int64_t stages, int64_t minibatches) {
  PipelinesToSimulate what;
  what.pipelines = pipelines;
  what.minibatches = minibatches;
  what.pipeline.replicas.assign(static_cast<size_t>(stages), 1);
  StageTimes times;
  times.forward_seconds = times.backward_seconds = 0.01;
  what.times.assign(static_cast<size_t>(stages), times);
  for (int64_t s = 0; s < stages; ++s) {
    what.pipeline.in_flight.push_back(stages - s);
    what.ranks.emplace_back();
    for (int64_t p = 0; p < pipelines; ++p) what.ranks.back().push_back(s * pipelines + p);
  }
  return what;
}

double seconds(PipelinesToSimulate what, const std::string& sync) {
  what.sync = sync;
  return simulate_pipelines(what).total_seconds;
}

}  // namespace

TEST_CASE("simulated pipelines: without ties each takes what the simulator of plans says of it alone") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomPipelines pipelines(seed);
    const PipelinesToSimulate& what = pipelines.what;
    CAPTURE(seed, what.schedule, what.pipelines, what.minibatches);
    const double alone =
        simulate(what.schedule, what.pipeline, what.times, what.minibatches / what.pipelines).total_seconds;
    CHECK(pipelines.run("none").total_seconds == Approx(alone));
  }
}

TEST_CASE("simulated pipelines: all-reduce is the plan with replicas, as the simulator of plans has it") {
  for (uint64_t seed = 300; seed < 600; ++seed) {
    RandomPipelines pipelines(seed);
    const PipelinesToSimulate& what = pipelines.what;
    CAPTURE(seed, what.schedule, what.pipelines, what.minibatches);
    PipelineShape whole = what.pipeline;
    for (int64_t& replicas : whole.replicas) replicas = what.pipelines;
    if (whole.weights == WeightRule::kFlush) whole.microbatches *= what.pipelines;
    std::vector<std::string> slow;
    if (seed % 2 == 0) slow.push_back("fixed:rank=" + std::to_string(what.pipelines - 1) + ",factor=3");
    if (seed % 3 == 0) slow.push_back("random:probability=0.2,duration=2s,seed=" + std::to_string(seed));
    if (seed % 5 == 0 && what.times.size() > 1)
      slow.push_back("link:sender=0,receiver=" + std::to_string(what.pipelines) + ",delay=1s");
    const Disturbances disturbances(slow);
    SimulationOptions options;
    if (!slow.empty()) pipelines.what.disturbances = options.disturbances = &disturbances;
    const double expected =
        simulate(what.schedule, whole, what.times, Span{0, what.minibatches}, options).total_seconds;
    CHECK(pipelines.run("all-reduce").total_seconds == Approx(expected));
  }
}

TEST_CASE("simulated pipelines: rules that come to the same take the same time") {
  for (uint64_t seed = 600; seed < 800; ++seed) {
    RandomPipelines pipelines(seed);
    CAPTURE(seed, pipelines.what.schedule, pipelines.what.pipelines, pipelines.what.minibatches);
    CHECK(pipelines.run("hetpipe:distance=0,wave=1").total_seconds ==
          Approx(pipelines.run("all-reduce").total_seconds));
    for (StageTimes& times : pipelines.what.times) times.reduce_seconds = 0;
    CHECK(pipelines.run("hetpipe:distance=100000").total_seconds ==
          Approx(pipelines.run("none").total_seconds));
    pipelines.what.pipelines = 2;
    CHECK(pipelines.run("adpsgd-lockstep").total_seconds ==
          Approx(pipelines.run("all-reduce").total_seconds));
    CHECK(pipelines.run("partial-reduce:window=1,minibatches=turns").total_seconds ==
          Approx(pipelines.run("all-reduce").total_seconds));
  }
}

TEST_CASE(
    "simulated pipelines: partial reduce ends under any delays, with its window kept and nobody far behind") {
  for (uint64_t seed = 800; seed < 1100; ++seed) {
    RandomPipelines pipelines(seed);
    const int64_t window = pipelines.between(1, 10);
    const Disturbances delays(
        {"random:probability=0.2,duration=5s,seed=" + std::to_string(seed), "fixed:pipeline=0,factor=3"});
    pipelines.what.disturbances = &delays;
    const std::string sync = "partial-reduce:window=" + std::to_string(window) +
                             (seed % 2 == 0 ? ",scope=pipeline" : "") +
                             (seed % 3 == 0 ? ",minibatches=turns" : "");
    CAPTURE(seed, sync, pipelines.what.schedule, pipelines.what.pipelines, pipelines.what.minibatches);
    const SimulatedPipelines run = pipelines.run(sync);
    const auto stages = static_cast<int64_t>(pipelines.what.times.size());
    CHECK(run.longest_window_updates <= static_cast<double>(std::max(window, stages + 1)) + 1e-9);
    CHECK(run.waiting_fraction >= 0);
    CHECK(run.waiting_fraction < 1);
  }
}

TEST_CASE(
    "simulated pipelines: one that is 4 times as slow costs all-reduce a factor of 4, and loose rules "
    "little") {
  const Disturbances slow({"fixed:pipeline=0,factor=4"});
  for (const int64_t n : {2, 4, 8}) {
    PipelinesToSimulate what = even(n, 2, 200 * n);
    const double quiet = seconds(what, "all-reduce");
    what.disturbances = &slow;
    CAPTURE(n);
    const double together = seconds(what, "all-reduce");
    CHECK(together / quiet == Approx(4).epsilon(0.02));
    // Each trains at its own speed: (n - 1) + 1/4 instead of n / 4.
    const double most = (4.0 * static_cast<double>(n - 1) + 1) / static_cast<double>(n);
    CHECK(together / seconds(what, "none:minibatches=shared") == Approx(most).epsilon(0.04));
    const double partial = together / seconds(what, "partial-reduce");
    CHECK(partial > 0.93 * most);
    CHECK(partial <= most * 1.001);
    what.sync = "partial-reduce";
    CHECK(simulate_pipelines(what).longest_window_updates <= 10);
    // Exchanges are beside training: nothing is waited for.
    CHECK(seconds(what, "adpsgd") == seconds(what, "none:minibatches=shared"));
    what.sync = "adpsgd";
    CHECK(simulate_pipelines(what).longest_window_updates < 40);
    if (n == 4) CHECK(together / seconds(what, "adpsgd") >= 2.5);
    CHECK(seconds(what, "adpsgd-lockstep") == Approx(together).epsilon(0.02));
    CHECK(seconds(what, "hetpipe") == Approx(together).epsilon(0.05));
  }
}

TEST_CASE("simulated pipelines: who stalls now and then holds those that it averages with not up") {
  for (const auto& [n, aim] : {std::pair<int64_t, double>{2, 1.2}, {4, 1.5}, {8, 1.9}}) {
    PipelinesToSimulate what = even(n, 2, 200 * n);
    double faster = 0;
    for (int seed = 1; seed <= 4; ++seed) {
      const Disturbances stalls({"random:probability=0.1,duration=100ms,seed=" + std::to_string(seed)});
      what.disturbances = &stalls;
      faster += seconds(what, "all-reduce") / seconds(what, "partial-reduce") / 4;
    }
    CAPTURE(n);
    CHECK(faster >= aim);
  }
}

TEST_CASE("simulated pipelines: a clock distance evens out what is slow now and then, and keeps to itself") {
  const Disturbances delays({"random:probability=0.1,duration=100ms,seed=3"});
  PipelinesToSimulate what = even(4, 2, 1600);
  what.disturbances = &delays;
  double before = seconds(what, "all-reduce");
  for (const int64_t distance : {0, 1, 4, 16}) {
    what.sync = "hetpipe:wave=2,distance=" + std::to_string(distance);
    const SimulatedPipelines run = simulate_pipelines(what);
    CAPTURE(distance);
    CHECK(run.total_seconds <= before);
    CHECK(run.most_ahead_updates <= 2 * (distance + 1));
    before = run.total_seconds;
  }
}

// Ranks of a machine that are more than its cores.
#include <catch2/catch.hpp>
#include <random>

#include "runtime/schedule/simulate.h"
#include "tests/runtime/schedule/shapes.h"

namespace pipewright {
namespace {

using testing::dashed;

bool takes_a_core(const SimulatedAction& one) {
  switch (one.action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kUpdate:
    case ActionKind::kReduce:
      return one.end_seconds > one.begin_seconds;
    default:
      return false;
  }
}

double seconds_alone(const SimulatedAction& one, const StageTimes& times) {
  switch (one.action.kind) {
    case ActionKind::kForward:
      return times.forward_seconds;
    case ActionKind::kBackward:
      return times.recompute_seconds + times.backward_seconds;
    case ActionKind::kBackwardInput:
      return times.recompute_seconds + times.backward_seconds - times.backward_weight_seconds;
    case ActionKind::kBackwardWeight:
      return times.backward_weight_seconds;
    case ActionKind::kReduce:
      return times.reduce_seconds;
    default:
      return times.step_seconds;
  }
}

// Of a core, over the whole action, where each of those at work on the host has as much as any other.
double core_seconds(const SimulatedAction& one, const std::vector<SimulatedAction>& on_host, int64_t cores) {
  std::vector<double> moments = {one.begin_seconds, one.end_seconds};
  for (const SimulatedAction& other : on_host) {
    for (const double moment : {other.begin_seconds, other.end_seconds})
      if (moment > one.begin_seconds && moment < one.end_seconds) moments.push_back(moment);
  }
  std::sort(moments.begin(), moments.end());
  double sum = 0;
  for (size_t i = 1; i < moments.size(); ++i) {
    const double middle = (moments[i - 1] + moments[i]) / 2;
    const auto at_work = std::count_if(on_host.begin(), on_host.end(), [&](const SimulatedAction& other) {
      return other.begin_seconds < middle && middle < other.end_seconds;
    });
    sum += (moments[i] - moments[i - 1]) *
           std::min(1.0, static_cast<double>(cores) / static_cast<double>(at_work));
  }
  return sum;
}

struct CoresCase {
  std::string schedule;
  PipelineShape shape;
  std::vector<StageTimes> times;
  SimulationOptions options;
};

CoresCase random_cores_case(std::mt19937_64& random) {
  const auto number = [&](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  CoresCase one;
  const char* const kSchedules[] = {"1f1b", "1f1b-flush", "gpipe", "zb-h1", "model-parallel"};
  one.schedule = kSchedules[random() % 5];
  for (size_t stages = 1 + random() % 3; stages > 0; --stages) {
    one.shape.replicas.push_back(1 + static_cast<int64_t>(random() % 3));
    one.shape.in_flight.push_back(1 + static_cast<int64_t>(random() % 4));
  }
  one.shape.microbatches = 1 + static_cast<int64_t>(random() % 6);
  if (one.schedule != "1f1b" && one.schedule != "model-parallel") one.shape.weights = WeightRule::kFlush;
  const std::vector<int64_t> depths = schedule_named(one.schedule).depths(one.shape);
  // Hosts of so many devices, in any order; sums stay on one host, where all are equal.
  one.options.cores.devices = random() % 2 ? 9 : 2;
  one.options.cores.cores = one.options.cores.devices == 2 ? 1 : 1 + static_cast<int64_t>(random() % 3);
  for (size_t s = 0; s < depths.size(); ++s) {
    one.shape.in_flight[s] = std::max(one.shape.in_flight[s], depths[s]);
    StageTimes t{number(1), number(2), 0, number(0.3), number(0.5), number(0.5)};
    if (one.options.cores.devices == 9) t.reduce_seconds = number(0.5);
    t.backward_weight_seconds = number(t.backward_seconds);
    t.recompute_seconds = random() % 2 ? 0 : number(1);
    one.times.push_back(t);
  }
  for (int64_t rank = 0; rank < one.shape.ranks(); ++rank) one.options.devices.push_back(rank);
  std::shuffle(one.options.devices.begin(), one.options.devices.end(), random);
  return one;
}

TEST_CASE("shared cores: whatever computes has its part of a core for as long as it needs, no more or less") {
  std::mt19937_64 random(29);
  for (int round = 0; round < 200; ++round) {
    const CoresCase one = random_cores_case(random);
    CAPTURE(round, one.schedule, dashed(one.shape.replicas), one.options.cores.devices,
            one.options.cores.cores);
    const Simulation run = simulate(one.schedule, one.shape, one.times, Span{0, 12}, one.options);
    std::map<int64_t, std::vector<SimulatedAction>> hosts;
    const auto host_of = [&](const SimulatedAction& action) {
      return one.options.devices[static_cast<size_t>(action.rank)] / one.options.cores.devices;
    };
    for (const SimulatedAction& action : run.actions)
      if (takes_a_core(action)) hosts[host_of(action)].push_back(action);
    for (const SimulatedAction& action : run.actions) {
      if (!takes_a_core(action)) continue;
      const int64_t stage =
          action.action.stage_or(run.ranks[static_cast<size_t>(action.rank)].placement.stage);
      CHECK(core_seconds(action, hosts[host_of(action)], one.options.cores.cores) ==
            Approx(seconds_alone(action, one.times[static_cast<size_t>(stage)])).margin(1e-9));
    }
    const double alone = simulate(one.schedule, one.shape, one.times, Span{0, 12}).total_seconds;
    CHECK(run.total_seconds >= alone * (1 - 1e-9));
  }
}

TEST_CASE("shared cores: a pipeline on one core takes all of its work, data parallelism its sums too") {
  SimulationOptions options;
  options.cores = {2, 1};
  const std::vector<StageTimes> stages(2, StageTimes{1, 2, 0, 0.5, 0, 0});
  const PipelineShape straight{{1, 1}, {2, 1}};
  CHECK(settled_minibatch_seconds("1f1b", straight, stages, options) == Approx(7));
  CHECK(settled_minibatch_seconds("1f1b", straight, stages) == Approx(3.5));
  const PipelineShape parallel{{2}, {1}};
  const std::vector<StageTimes> stage(1, StageTimes{1, 2, 0.25, 0.5, 0, 0});
  CHECK(settled_minibatch_seconds("1f1b", parallel, stage, options) == Approx(3.75));
  CHECK(settled_minibatch_seconds("1f1b", parallel, stage) == Approx(3.75 / 2));
  options.sums_take_cores = false;  // nor does a sum slow down what computes: both are in it
  CHECK(settled_minibatch_seconds("1f1b", parallel, stage, options) == Approx(3.5 + 0.125));
  options.cores.cores = 2;  // one each
  CHECK(settled_minibatch_seconds("1f1b", straight, stages, options) == 3.5);
}

TEST_CASE("shared cores: no price is below what a host's cores can do, whatever the depths") {
  std::mt19937_64 random(30);
  for (int round = 0; round < 100; ++round) {
    CoresCase one = random_cores_case(random);
    one.options.cores.devices = 9;
    CAPTURE(round, one.schedule, dashed(one.shape.replicas), one.options.cores.cores);
    one.shape.in_flight = choose_in_flight(one.schedule, one.shape, one.times, one.options);
    double work = 0;
    for (size_t s = 0; s < one.times.size(); ++s) {
      const StageTimes& t = one.times[s];
      const bool sums = one.shape.replicas[s] > 1;
      const double updates =
          one.shape.weights == WeightRule::kFlush
              ? static_cast<double>(one.shape.replicas[s]) / static_cast<double>(one.shape.microbatches)
              : 1;
      work += t.forward_seconds + t.recompute_seconds + t.backward_seconds +
              updates * (t.step_seconds + (sums ? t.reduce_seconds : 0));
    }
    const auto cores = static_cast<double>(one.options.cores.cores);
    CHECK(settled_minibatch_seconds(one.schedule, one.shape, one.times, one.options) >=
          work / cores * (1 - 3e-3));
  }
}

}  // namespace
}  // namespace pipewright

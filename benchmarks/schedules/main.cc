// What simulating schedules and choosing depths costs, in CPU seconds of this thread (the median of five).
// Figures: benchmarks/RESULTS.md.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "runtime/schedule/simulate.h"

namespace {

using namespace pipewright;
using Numbers = std::vector<int64_t>;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median_of_five(const std::function<void()>& work) {
  std::vector<double> seconds(5);
  for (double& run : seconds) {
    const double begin = cpu_seconds();
    work();
    run = cpu_seconds() - begin;
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[2];
}

StageTimes stage_times(int64_t replicas) {
  const auto scale = static_cast<double>(replicas);
  return {1e-3 * scale, 2e-3 * scale, 5e-4, 1e-4, 4e-4 * scale, 4e-4 * scale, 1e-3 * scale};
}

void simulate_one(const char* name, const std::string& schedule, const PipelineShape& shape,
                  int64_t minibatches, SimulationOptions options = {}) {
  std::vector<StageTimes> times;
  for (const int64_t replicas : shape.replicas) times.push_back(stage_times(replicas));
  if (!options.network.empty())
    options.messages.assign(times.size(), StageMessages{1'000'000, 1'000'000, 4'000'000});
  const Span span{0, minibatches};
  size_t actions = 0;
  const double all =
      median_of_five([&] { actions = simulate(schedule, shape, times, span, options).actions.size(); });
  const double steady =
      median_of_five([&] { steady_minibatch_seconds(schedule, shape, times, span, options); });
  const auto millions = [&](double seconds) { return static_cast<double>(actions) / seconds / 1e6; };
  std::printf("%-44s %8zu  %7.4f s %6.1f M/s  %7.4f s %6.1f M/s\n", name, actions, all, millions(all), steady,
              millions(steady));
}

void choose_one(const char* name, const Numbers& replicas, double spread) {
  std::vector<StageTimes> times;
  for (size_t stage = 0; stage < replicas.size(); ++stage) {
    // Some stages up to `spread` slower, the same every time.
    const double slower = 1 + spread * static_cast<double>((stage * 37 + 11) % 101) / 100;
    StageTimes t = stage_times(replicas[stage]);
    t.forward_seconds *= slower;
    t.backward_seconds *= slower;
    times.push_back(t);
  }
  const double seconds = median_of_five([&] { choose_in_flight(replicas, times); });
  std::printf("%-44s %8.4f s\n", name, seconds);
}

}  // namespace

int main() {
  std::printf("%-44s %8s  %21s  %21s\n", "simulation", "actions", "all actions kept", "steady state alone");
  const Numbers ones(512, 1);
  PipelineShape straight{ones, pipedream_in_flight(ones)};
  simulate_one("1f1b, 512 ranks, 100 minibatches", "1f1b", straight, 100);
  simulate_one("1f1b, 128-128-128-128, 12800 minibatches", "1f1b", {Numbers(4, 128), {5, 4, 3, 1}}, 12800);
  PipelineShape flush{ones, Numbers(512, 512)};
  flush.weights = WeightRule::kFlush;
  flush.microbatches = 100;
  simulate_one("gpipe, 512 ranks, 100 minibatches", "gpipe", flush, 100);
  simulate_one("zb-h1, 512 ranks, 100 minibatches", "zb-h1", flush, 100);
  PipelineShape several{Numbers(1024, 1), Numbers(1024, 512)};
  several.weights = WeightRule::kFlush;
  several.microbatches = 100;
  several.stages_per_rank = 2;
  simulate_one("interleaved, 512 ranks x 2, 100 minibatches", "interleaved", several, 100);
  SimulationOptions options;
  options.send_queue = 513;
  simulate_one("1f1b, 512 ranks, queues", "1f1b", straight, 100, options);
  options.send_queue = 0;
  options.network = {{8, 12e9, 0, false}, {64, 1.25e9, 0, false}};
  simulate_one("1f1b, 512 ranks, network 64 x 8", "1f1b", straight, 100, options);
  simulate_one("1f1b, 128-128-128-128, network 64 x 8", "1f1b", {Numbers(4, 128), {5, 4, 3, 1}}, 12800,
               options);

  std::printf("\nchoose_in_flight\n");
  choose_one("4-2-2", {4, 2, 2}, 0.2);
  choose_one("15-1", {15, 1}, 0.2);
  choose_one("9-5-1-1", {9, 5, 1, 1}, 0.2);
  choose_one("16 straight, equal", Numbers(16, 1), 0);
  choose_one("16 straight", Numbers(16, 1), 0.2);
  choose_one("32 straight", Numbers(32, 1), 0.2);
  choose_one("64-64-64-64", Numbers(4, 64), 0.2);
  choose_one("500-12", {500, 12}, 0.2);
  choose_one("128-128-128-128", Numbers(4, 128), 0.2);
  return 0;
}

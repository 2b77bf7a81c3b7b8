// What a pipeline takes in the long run, whatever its schedule.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "runtime/schedule/cycle_time.h"
#include "runtime/schedule/simulate.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
namespace {

constexpr double kAgree = 2e-3;
constexpr int64_t kMostMinibatchesOfStages = 400000;  // of one span, times stages
constexpr int64_t kLongestRound = 512;
constexpr int64_t kSweepsForEvents = 4;  // without a network simulations are as much quicker

bool agree(double a, double b) { return std::abs(a - b) <= kAgree * std::max(a, b); }

double total_seconds(const std::string& schedule, const PipelineShape& shape,
                     const std::vector<StageTimes>& times, int64_t count, const SimulationOptions& options) {
  Timeline timeline(schedule, shape, times, Span{0, count}, nullptr);
  run_timeline(timeline, options);
  return timeline.total_seconds();
}

/// What another interval adds.
double interval_seconds(const std::string& schedule, const PipelineShape& shape,
                        const std::vector<StageTimes>& times, const SimulationOptions& options) {
  // Intervals repeat when every stage's round robin is back where it was.
  int64_t repeat = shape.microbatches;
  for (int64_t s = 0; s < shape.stages(); ++s) {
    const int64_t together = std::lcm(repeat, StageTurns(shape, s).cycle_length());
    if (together > 16 * shape.microbatches) break;
    repeat = together;
  }
  double before = total_seconds(schedule, shape, times, repeat, options);
  double one = -1;
  for (int64_t intervals = 2;; intervals *= 2) {
    const double all = total_seconds(schedule, shape, times, intervals * repeat, options);
    const double last = (all - before) / static_cast<double>(intervals / 2 * repeat);
    const bool longest = 2 * intervals * repeat * shape.stages() > kMostMinibatchesOfStages;
    if (longest || (one >= 0 && agree(one, last))) return last;
    one = last;
    before = all;
  }
}

/// The span that is looked at first: whole rounds of all stages, and of updates where stages wait for each
/// other's; the pipeline filled several times over.
int64_t first_span(const PipelineShape& shape) {
  int64_t round = shape.tied.empty() ? 1 : shape.microbatches;
  int64_t depth = 1;
  for (int64_t s = 0; s < shape.stages(); ++s) {
    round = std::lcm(round, shape.replicas[s]);
    if (round > kLongestRound) round = kLongestRound + 1;
    depth = std::max(depth, shape.replicas[s] * shape.in_flight[s]);
  }
  if (round > kLongestRound) round = 1;  // not awaited: the mean over many says what it says
  return round * std::max<int64_t>((8 * depth + 32 + round - 1) / round, 8);
}

}  // namespace

double rough_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                               const std::vector<StageTimes>& times, const SimulationOptions& options,
                               int64_t* simulated) {
  const int64_t count = first_span(shape) / 2;
  if (simulated != nullptr) *simulated += count * shape.stages();
  return steady_minibatch_seconds(schedule, shape, times, Span{0, count}, options);
}

double settled_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                 const std::vector<StageTimes>& times, const SimulationOptions& options,
                                 int64_t* simulated) {
  check_times(shape, times);
  if (shape.weights == WeightRule::kFlush) return interval_seconds(schedule, shape, times, options);
  const bool plain = options.network.empty() && options.send_queue == 0 && !options.blocking_transfers;
  if (plain && schedule == "1f1b") {
    if (const std::optional<double> endless = endless_minibatch_seconds(shape, times)) return *endless;
  }
  for (int64_t count = first_span(shape);; count *= 2) {
    Timeline timeline(schedule, shape, times, Span{0, count}, nullptr);
    run_timeline(timeline, options);
    if (simulated != nullptr) *simulated += count * shape.stages() / (plain ? kSweepsForEvents : 1);
    const double last = timeline.steady_seconds();
    const std::optional<double> before = timeline.pace_seconds(count / 4, count / 2);
    if (2 * count * shape.stages() > kMostMinibatchesOfStages || (before && agree(*before, last)))
      return last;
  }
}

}  // namespace pipewright

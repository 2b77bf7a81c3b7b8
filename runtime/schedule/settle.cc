// What a pipeline takes in the long run, whatever its schedule.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <optional>

#include "graph/error.h"
#include "runtime/schedule/cycle_time.h"
#include "runtime/schedule/network_floor.h"
#include "runtime/schedule/one_for_all.h"
#include "runtime/schedule/simulate.h"
#include "runtime/schedule/timeline.h"

namespace pipewright {
namespace {

constexpr double kAgree = 2e-3;
constexpr int64_t kMostMinibatchesOfStages = 400000;  // of one span, times stages
// What so much of the first span says, or all of it, is off by no more than that, nearly always.
struct Glance {
  int64_t eighths;
  double off;
};
constexpr Glance kGlances[] = {{2, 1.15}, {3, 1.06}, {4, 1.03}};
constexpr double kNearly = 1.005;
constexpr double kFirstInterval = 1.05;        // later ones are hardly shorter than the first
constexpr int64_t kIntervals = 6;              // in which one is like the one before
constexpr int64_t kMostIntervalsOfCycle = 64;  // until the turns of a stage are where they were
constexpr int64_t kLongestRound = 512;
constexpr int64_t kSweepsForEvents = 4;  // without a network simulations are as much quicker

bool agree(double a, double b) { return std::abs(a - b) <= kAgree * std::max(a, b); }

double total_seconds(const std::string& schedule, const PipelineShape& shape,
                     const std::vector<StageTimes>& times, int64_t count, const SimulationOptions& options) {
  Timeline timeline(schedule, shape, times, Span{0, count}, nullptr);
  run_timeline(timeline, options);
  return timeline.total_seconds();
}

/// The span that is looked at first: whole rounds of all stages, and of updates where stages wait for each
/// other's; the pipeline filled several times over.
int64_t first_span(const PipelineShape& shape) {
  int64_t depth = 1;
  for (int64_t s = 0; s < shape.stages(); ++s)
    depth = std::max(depth, shape.replicas[s] * shape.in_flight[s]);
  // A period that is too long is not awaited: the mean over many minibatches says what it says.
  const int64_t round = pipeline_period(shape, kLongestRound, !shape.tied.empty()).value_or(1);
  return round * std::max<int64_t>((8 * depth + 32 + round - 1) / round, 8);
}

// A span may end before what it has buffered has been waited for, and look faster than can be kept up. So no
// price is below what the busiest rank or link takes.

/// Minibatches that the first stage which is trained has in flight, at most.
int64_t in_flight_at_first(const PipelineShape& shape) {
  const auto first = static_cast<size_t>(shape.frozen_stages);
  return shape.replicas[first] * shape.in_flight[first];
}

/// Has a run come to repeat itself? States are compared a period apart, or a few.
class Repetition {
 public:
  /// Seconds per minibatch since the state that is like this one.
  std::optional<double> found(const EventRun& run, int64_t completed, int64_t period) {
    Seen now{completed, run.now(), {}};
    if (!run.state(&now.state)) return std::nullopt;
    for (const Seen& before : seen_) {
      const double seconds = now.seconds - before.seconds;
      if ((completed - before.completed) % period == 0 &&
          alike(now.state, before.state, kSameState * seconds))
        return seconds / static_cast<double>(completed - before.completed);
    }
    seen_.push_front(std::move(now));
    if (seen_.size() > kPeriods) seen_.pop_back();
    return std::nullopt;
  }

 private:
  static constexpr size_t kPeriods = 6;
  static constexpr double kSameState =
      1e-6;  // of the time between; what drifts by more may come to run otherwise
  struct Seen {
    int64_t completed = 0;
    double seconds = 0;
    RunState state;
  };

  static bool alike(const RunState& a, const RunState& b, double apart) {
    if (a.at != b.at || a.left.size() != b.left.size()) return false;
    for (size_t i = 0; i < a.left.size(); ++i)
      if (std::abs(a.left[i] - b.left[i]) > apart) return false;
    return true;
  }

  std::deque<Seen> seen_;  // the last ones, latest first
};

/// Part by part, on shared links or cores. What is in flight when the lists end is beyond what is looked at.
class NetworkRun {
 public:
  NetworkRun(const std::string& schedule, const PipelineShape& shape, const std::vector<StageTimes>& times,
             const SimulationOptions& options, int64_t count, int64_t* simulated)
      : stages_(shape.stages()),
        simulated_(simulated),
        timeline_(schedule, shape, times, Span{0, count + in_flight_at_first(shape)}, nullptr),
        run_(timeline_, options),
        period_(pipeline_period(shape, kLongestRound)),
        next_(period_.value_or(0)) {}

  /// Of so many minibatches, or for ever where the run is found to repeat itself before.
  std::optional<double> pace(int64_t begin, int64_t end) {
    while (!endless_ && period_ && next_ <= end) {
      run_until(next_);
      endless_ = repetition_.found(run_, timeline_.completed(), *period_);
      next_ += *period_;
    }
    if (endless_) return endless_;
    run_until(end);
    return timeline_.pace_seconds(begin, end);
  }
  bool repeats() const { return endless_.has_value(); }
  /// Until so many minibatches are complete.
  double seconds_until(int64_t completed) {
    run_until(completed);
    return run_.now();
  }

 private:
  void run_until(int64_t end) {
    const int64_t before = timeline_.completed();
    run_.run_until(end);
    if (simulated_ != nullptr) *simulated_ += (timeline_.completed() - before) * stages_;
  }

  int64_t stages_;
  int64_t* simulated_;
  Timeline timeline_;
  EventRun run_;
  std::optional<int64_t> period_;
  int64_t next_;  // when states are compared
  Repetition repetition_;
  std::optional<double> endless_;
};

/// What another interval adds.
double interval_seconds(const std::string& schedule, const PipelineShape& shape,
                        const std::vector<StageTimes>& times, const SimulationOptions& options,
                        int64_t* simulated, double most_seconds) {
  const auto total = [&](int64_t count) {
    if (simulated != nullptr)
      *simulated += count * shape.stages() / (shares_anything(shape, options) ? 1 : kSweepsForEvents);
    return total_seconds(schedule, shape, times, count, options);
  };
  // Intervals repeat when every stage's round robin is back where it was.
  int64_t repeat = shape.microbatches;
  for (int64_t s = 0; s < shape.stages(); ++s) {
    const int64_t together = std::lcm(repeat, StageTurns(shape, s).cycle_length());
    if (together > kMostIntervalsOfCycle * shape.microbatches) break;
    repeat = together;
  }
  if (shares_anything(shape, options) && shape.tied.empty() && pipeline_period(shape, kLongestRound)) {
    NetworkRun run(schedule, shape, times, options, kIntervals * repeat, simulated);
    const double first = run.seconds_until(repeat) / static_cast<double>(repeat);
    if (first > kFirstInterval * most_seconds && shape.frozen_stages == 0)
      return first;  // these fill but once
    const std::optional<double> pace = run.pace(0, kIntervals * repeat);
    if (run.repeats()) return *pace;
  }
  double before = total(repeat);
  const double first = before / static_cast<double>(repeat);
  if (first > kFirstInterval * most_seconds && shape.frozen_stages == 0) return first;
  double one = -1;
  for (int64_t intervals = 2;; intervals *= 2) {
    const double all = total(intervals * repeat);
    const double last = (all - before) / static_cast<double>(intervals / 2 * repeat);
    const bool longest = 2 * intervals * repeat * shape.stages() > kMostMinibatchesOfStages;
    if (longest || (one >= 0 && agree(one, last))) return last;
    one = last;
    before = all;
  }
}

/// Ranks of a host have no more than its cores, however they take turns.
double cores_floor_seconds(const PipelineShape& shape, const std::vector<StageTimes>& given,
                           const SimulationOptions& options) {
  if (!options.cores.too_few_for(shape.ranks())) return 0;
  const std::vector<StageTimes> times = times_with_frozen(shape, given);
  std::map<int64_t, double> hosts;  // core seconds of a minibatch
  const std::vector<int64_t> first = first_ranks(shape);
  for (int64_t stage = 0; stage < shape.stages(); ++stage) {
    const StageTimes& t = times[static_cast<size_t>(stage)];
    const StageTurns turns(shape, stage);
    const bool sums = options.network.empty() && options.sums_take_cores && turns.replicas() > 1;
    for (int64_t q = 0; q < turns.replicas(); ++q) {
      const ReplicaTimes own = t.of(q);
      const double minibatches =
          static_cast<double>(turns.cycle_length()) / static_cast<double>(turns.share(q));
      const double each =
          own.minibatch_seconds() / minibatches +
          (own.step_seconds + (sums ? t.reduce_seconds : 0)) / static_cast<double>(turns.round_length());
      const int64_t rank = first[static_cast<size_t>(stage)] + q;
      const int64_t device = options.devices.empty() ? rank : options.devices[static_cast<size_t>(rank)];
      hosts[device / options.cores.devices] += each;
    }
  }
  double most = 0;
  for (const auto& [host, seconds] : hosts) most = std::max(most, seconds);
  return most / static_cast<double>(options.cores.cores);
}

double settled_with_others(const std::string& schedule, const PipelineShape& shape,
                           const std::vector<StageTimes>& times, const SimulationOptions& options,
                           int64_t* simulated, double most_seconds) {
  const int64_t first = first_span(shape);
  double floor = 0;
  if (schedule_named(schedule).trains()) {
    floor = options.network.empty() ? bottleneck_seconds(shape, times, options.blocking_transfers)
                                    : network_floor_seconds(shape, times, options);
    floor = std::max(floor, cores_floor_seconds(shape, times, options));
  }
  if (most_seconds < std::numeric_limits<double>::infinity()) {
    NetworkRun glance(schedule, shape, times, options, first / 2, simulated);
    for (const Glance& each : kGlances) {
      const int64_t end = first * each.eighths / 8;
      const std::optional<double> rough = glance.pace(end / 2, end);
      if (glance.repeats()) return std::max(floor, *rough);
      if (rough && *rough > each.off * most_seconds) return *rough;
    }
  }
  for (int64_t count = first;; count *= 4) {
    NetworkRun run(schedule, shape, times, options, 2 * count, simulated);
    for (const int64_t end : {count, 2 * count}) {
      const std::optional<double> before = run.pace(end / 4, end / 2);
      const std::optional<double> last = run.pace(end / 2, end);
      PW_CHECK(last, "a pace of " << end / 2 << " minibatches");
      if (run.repeats()) return std::max(floor, *last);
      const bool longest = 2 * end * shape.stages() > kMostMinibatchesOfStages;
      if (longest || *last > kNearly * most_seconds || (before && agree(*before, *last)))
        return std::max(floor, *last);
    }
  }
}

}  // namespace

double settled_minibatch_seconds(const std::string& schedule, const PipelineShape& shape,
                                 const std::vector<StageTimes>& times, const SimulationOptions& options,
                                 int64_t* simulated, double most_seconds) {
  check_times(shape, times);
  if (shape.any_splits()) {
    const OneForAll one = one_for_all(shape, times);
    return settled_minibatch_seconds(schedule, one.shape, one.times, on_own_links(options), simulated,
                                     most_seconds);
  }
  if (facts_of(shape.weights).drains())
    return interval_seconds(schedule, shape, times, options, simulated, most_seconds);
  if (shares_anything(shape, options))
    return settled_with_others(schedule, shape, times, options, simulated, most_seconds);
  const bool plain =
      options.send_queue == 0 && !options.blocking_transfers && options.disturbances == nullptr;
  if (plain && schedule_facts(schedule).kind == ScheduleKind::k1F1B) {
    EndlessPace pace;
    const std::optional<double> endless = pace.minibatch_seconds(shape, times);
    if (simulated != nullptr) *simulated += pace.simulated();
    if (endless) return *endless;
  }
  const double floor =
      schedule_named(schedule).trains() ? bottleneck_seconds(shape, times, options.blocking_transfers) : 0;
  for (int64_t count = first_span(shape);; count *= 2) {
    Timeline timeline(schedule, shape, times, Span{0, count}, nullptr);
    run_timeline(timeline, options);
    if (simulated != nullptr) *simulated += count * shape.stages() / (plain ? kSweepsForEvents : 1);
    const double last = timeline.steady_seconds();
    const std::optional<double> before = timeline.pace_seconds(count / 4, count / 2);
    if (2 * count * shape.stages() > kMostMinibatchesOfStages || (before && agree(*before, last)))
      return std::max(floor, last);
  }
}

}  // namespace pipewright

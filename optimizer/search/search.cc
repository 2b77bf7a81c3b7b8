#include "optimizer/search/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "graph/limits.h"
#include "optimizer/cost/formulas.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/search/search_flat.h"
#include "optimizer/search/search_stage.h"

namespace pipewright {
namespace {

using namespace search_detail;  // NOLINT: its own details

/// From here on it is likely that the best plan has been met.
constexpr double kCloseBracket = 0.02;

std::optional<Solution> one_stage(const Problem& q) {
  const StageLoad load = load_of(q, 0, q.states->last());
  if (!recompute_to_fit(q, load, q.devices, 0, q.memory_bytes)) return std::nullopt;
  Solution solution;
  solution.stages = {{0, q.states->last(), q.devices}};
  finish(q, &solution);
  return solution;
}

/// Any solution within the memory, whatever it takes.
std::optional<Solution> any_solution(const Problem& q) {
  if (q.single_stage) return one_stage(q);
  return q.all_devices ? exactly_all_devices(q, kNoLimit, false) : FewestDevices(q).within(kNoLimit);
}

std::optional<Solution> one_placed_stage(const Problem& q) {
  StageLoad load = load_of(q, 0, q.states->last());
  load.workspace = workspace_between(*q.states, 0, q.states->last());
  Stage stage;
  stage.ranks.resize(static_cast<size_t>(q.devices));
  std::iota(stage.ranks.begin(), stage.ranks.end(), int64_t{0});
  const auto recompute =
      recompute_to_fit(q, load, q.devices, 0, memory_limit_bytes(q.inputs, q.memory_bytes, stage.ranks));
  if (!recompute) return std::nullopt;
  load.recompute = *recompute;
  if (!q.inputs.speeds.empty()) {
    std::vector<double> seconds;
    for (const int64_t rank : stage.ranks) seconds.push_back(compute_seconds_on(load, q.inputs, rank));
    stage.shares = best_shares(seconds, q.inputs.most_minibatches_of_round);
  }
  Solution solution;
  solution.stages = {{0, q.states->last(), q.devices, stage.ranks, stage.shares, *recompute}};
  solution.devices = q.devices;
  solution.period_seconds = price_placed({load}, {stage}, q.inputs).total_seconds();
  return solution;
}

std::optional<Solution> on_all_devices(const Problem& q) {
  const std::optional<Solution> fastest = exactly_all_devices(q, kNoLimit, true);
  if (!fastest) return fastest;
  // With one minibatch in flight no stage waits for a slower one: what crosses the cuts adds up instead.
  std::optional<double> levels_of;
  if (!q.one_in_flight) levels_of = fastest->period_seconds;
  return exactly_all_devices(q, fastest->period_seconds * (1 + kTolerance), false, levels_of);
}

/// On unequal devices in a row, with the last stage on the first of them or on the last.
std::optional<Solution> on_all_devices_either_way(const Problem& q) {
  std::optional<Solution> best = on_all_devices(q);
  Problem turned = q;
  std::reverse(turned.inputs.speeds.begin(), turned.inputs.speeds.end());
  std::reverse(turned.inputs.paces.begin(), turned.inputs.paces.end());
  std::reverse(turned.inputs.classes.begin(), turned.inputs.classes.end());
  std::reverse(turned.inputs.memories.begin(), turned.inputs.memories.end());
  std::optional<Solution> other = on_all_devices(turned);
  if (!other || (best && best->period_seconds <= other->period_seconds * (1 + kTolerance))) return best;
  for (FoundStage& stage : other->stages)
    for (int64_t& rank : stage.ranks) rank = q.devices - 1 - rank;
  return other;
}

/// With depths that follow from the period a plan found says nothing of shorter ones: plain bisection.
/// `refuted` is a period that no plan is below.
std::optional<Solution> at_least_depths(const Problem& q, FewestDevices* table, double* refuted) {
  constexpr double kClose = 1e-4;
  const State& whole = q.states->states.back();
  double low =
      (whole.forward_seconds + whole.backward_seconds) / static_cast<double>(q.devices) * (1 - kTolerance);
  std::optional<Solution> best = table->within(kNoLimit);
  if (!best) return best;
  double high = kNoLimit;
  for (double step = 0.01; low > 0 && high == kNoLimit && step < 1e9; step *= 2) {
    const double period = low * (1 + step);
    if (std::optional<Solution> found = table->within(period)) {
      best = std::move(found);
      high = period;
    } else {
      low = period;
    }
  }
  while (high < kNoLimit && high - low > kClose * high) {
    const double middle = low + (high - low) / 2;
    if (std::optional<Solution> found = table->within(middle)) {
      best = std::move(found);
      high = middle;
    } else {
      low = middle;
    }
  }
  if (refuted != nullptr) *refuted = low * (1 - kTolerance);
  return best;
}

/// Smallest period: bisection between what is impossible and what was achieved.
std::optional<Solution> fewest_at_least_period(const Problem& q) {
  FewestDevices table(q);
  if (q.least_depths) return at_least_depths(q, &table, nullptr);
  std::optional<Solution> best = table.within(kNoLimit);
  if (!best) return best;
  double high = best->period_seconds;  // achieved
  const State& whole = q.states->states.back();
  double low =
      (whole.forward_seconds + whole.backward_seconds) / static_cast<double>(q.devices) * (1 - kTolerance);
  // `low` is a bound; every other value that `low` takes was tried and found impossible. Each success brings
  // `high` down to what the plan found really takes.
  const auto tried = [&](double period) {
    const std::optional<Solution> found = table.within(period);
    if (found) {
      high = std::min(period, found->period_seconds);
    } else {
      low = period;
    }
    return found.has_value();
  };
  // Mostly it is not far above the work shared out, and too short a period is refuted quickly.
  for (double step = 0.03; low > 0 && low * (1 + step) < high; step *= 3) {
    if (tried(low * (1 + step))) break;
  }
  // Every other try is just below `high`: it is the last one as soon as `high` is the best there is, which
  // the bisection would only close in on.
  while (high - low > kProof * high) {
    tried(low + (high - low) / 2);
    if (high - low < kCloseBracket * high && high - low > kProof * high) tried(high * (1 - kProof));
  }
  const double period = high * (1 + kTolerance);
  PW_CHECK(table.within(period).has_value(), "a period that was achieved stays possible");
  return table.best_of_fewest(period, high);
}

}  // namespace

int64_t assumed_in_flight(const Problem& q, int64_t later_devices, int64_t replicas, double behind_seconds) {
  if (q.one_in_flight) return 1;
  if (q.least_depths) {
    const double paced = q.depth_period_seconds * static_cast<double>(replicas);
    const double least = paced > 0 ? std::ceil(behind_seconds / paced * (1 - kTolerance)) : 1;
    return static_cast<int64_t>(std::clamp(least, 1.0, static_cast<double>(kMostInFlight)));
  }
  const int64_t bound = std::min(in_flight_bound(later_devices, replicas), kMostInFlight);
  if (q.interval == 0) return bound;
  const int64_t interval = (q.interval + replicas - 1) / replicas;
  return std::min(q.whole_interval ? interval : std::min(bound, interval), kMostInFlight);
}

std::optional<Solution> search(const Problem& q) {
  PW_CHECK(q.states->size() >= 2, "the empty and the full set are states");
  if (q.single_stage) return q.inputs.placed() ? one_placed_stage(q) : one_stage(q);
  if (q.inputs.devices_differ() && q.devices == static_cast<int64_t>(q.inputs.memories.size()))
    return on_all_devices_either_way(q);
  return q.all_devices ? on_all_devices(q) : fewest_at_least_period(q);
}

namespace {

/// Seconds for a byte of gradients that any `m` of the devices take for their sum at least, by m.
std::vector<double> least_exchange_of_any(const Problem& q) {
  const auto seconds = [](double crossing, double bandwidth) {
    return all_reduce_link_seconds(1, crossing, bandwidth);
  };
  std::vector<double> least(static_cast<size_t>(q.devices) + 1, 0);
  for (int64_t m = 2; m <= q.devices; ++m)
    least[static_cast<size_t>(m)] = seconds(crossing_part(1, m), q.inputs.bandwidth_bytes_per_second);
  const bool rings = rings_take_less(q.inputs);
  int64_t group = 1;
  for (const TopologyLevel& level : q.inputs.levels) {
    const int64_t members = (q.devices + group - 1) / group;
    for (int64_t m = group + 1; m <= q.devices && members > 1; ++m) {
      // Some member has x replicas or m - x: evenly spread, or as many as fit in one. A ring passes its link
      // once.
      const int64_t x = rings ? 1 : std::max<int64_t>(1, std::min((m + members - 1) / members, m - group));
      const double crossing = crossing_part(std::min(x, m - x), m);
      double& any = least[static_cast<size_t>(m)];
      any = std::max(any, seconds(crossing, level.bandwidth_bytes_per_second));
    }
    group *= level.count;
  }
  for (double& any : least) any *= q.inputs.exchange_factor;
  return least;
}

}  // namespace

double least_period_anywhere(const Problem& problem) {
  Problem q = problem;
  const bool differ = q.inputs.devices_differ();
  if (differ || q.single_stage || q.one_in_flight) return 0;
  q.all_devices = false;  // nor are there of fewer
  q.least_depths = true;
  const bool intervals = q.inputs.minibatches_per_update > 0;
  if (intervals || !q.inputs.levels.empty()) q.least_exchange_seconds_per_byte = least_exchange_of_any(q);
  if (intervals) q.inputs.exchange_factor = 0;  // the formula has that of more replicas than there are
  if (!q.inputs.levels.empty()) {
    q.inputs.levels.clear();
    q.inputs.latency_seconds = 0;  // latencies of one rank's messages do not add up
  }
  FewestDevices table(q);
  double refuted = 0;
  if (!at_least_depths(q, &table, &refuted)) return 0;
  return refuted;
}

FullestStage fullest_stage(const Problem& q, const Solution& solution) {
  FullestStage fullest;
  int64_t later = solution.devices;
  for (size_t s = 0; s < solution.stages.size(); ++s) {
    const FoundStage& stage = solution.stages[s];
    later -= stage.replicas;
    StageLoad load = load_between(*q.states, stage.from, stage.to);
    load.workspace = workspace_between(*q.states, stage.from, stage.to);
    load.recompute = stage.recompute;
    const int64_t depth = assumed_in_flight(q, later, stage.replicas);
    const StageMemory memory = stage_memory(load, stage.replicas, depth, q.inputs);
    if (s == 0 || memory.total_bytes() > fullest.memory.total_bytes())
      fullest = {static_cast<int>(s), depth, memory};
  }
  return fullest;
}

std::optional<Solution> search_least_memory(const Problem& problem) {
  Problem q = problem;
  q.memory_bytes = 0;
  // Memory does not depend on where a stage is.
  q.inputs.forget_devices();
  std::optional<Solution> best = any_solution(q);
  if (!best) return best;
  int64_t high = fullest_stage(q, *best).memory.total_bytes();
  int64_t low = 0;
  while (high - low > 1) {
    q.memory_bytes = low + (high - low) / 2;
    std::optional<Solution> found = any_solution(q);
    if (found) {
      high = fullest_stage(q, *found).memory.total_bytes();
      best = std::move(found);
    } else {
      low = q.memory_bytes;
    }
  }
  return best;
}

}  // namespace pipewright

#include "optimizer/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <tuple>

#include "graph/error.h"
#include "graph/limits.h"

namespace pipewright {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
/// Differences below this part are rounding: sums of the same seconds in another order.
constexpr double kTolerance = 1e-9;
/// The search ends when no period smaller by this part is possible.
constexpr double kProof = 1e-12;
/// From here on it is likely that the best plan has been met.
constexpr double kNear = 0.02;
/// Periods of stages are compared in so many parts of the plan's period: stages that are equal but for
/// rounding are equal. A power of two, so that simple ratios are not on the border between two parts.
constexpr double kLevels = 1 << 30;

/// The best way found to run the model from a state to its end.
struct Suffix {
  bool possible = false;
  // What is compared, in this order.
  double period_seconds = 0;  // left 0 where the period is only bounded
  int64_t devices = 0;        // left 0 where the number is given
  // Periods of the stages, slowest first; left empty where they are no aim. Their order is kept when the same
  // stage is added to both sides, so the best suffix is part of the best plan.
  std::vector<int32_t> levels;
  int64_t stages = 0;
  int64_t bytes = 0;  // over all cuts inside the suffix and the one before it
  // How it begins.
  int next = -1;
  int64_t replicas = 0;
  bool rest_replicated = false;  // which table it continues in
  int64_t rest_devices = 0;

  bool better_than(const Suffix& other) const {
    if (!other.possible) return true;
    return std::tie(period_seconds, devices, levels, stages, bytes) <
           std::tie(other.period_seconds, other.devices, other.levels, other.stages, other.bytes);
  }
  void add_level(int32_t level, const std::vector<int32_t>& rest) {
    levels.reserve(rest.size() + 1);
    levels = rest;
    levels.insert(std::upper_bound(levels.begin(), levels.end(), level, std::greater<>()), level);
  }
};

/// The period of a stage in a plan of `period`.
int32_t level_of(double stage_period, double period) {
  return period > 0 ? static_cast<int32_t>(std::lround(stage_period / period * kLevels)) : 0;
}

/// With its workspace where memory is limited.
StageLoad load_of(const Question& q, int from, int to) {
  StageLoad load = load_between(*q.states, from, to);
  if (q.memory_bytes > 0) load.workspace_bytes = workspace_between(*q.states, from, to);
  return load;
}

bool stage_allowed(const Question& q, int from, int to) {
  return q.least_stages < 2 || from != 0 || to != q.states->last();
}

bool fits(const Question& q, const StageLoad& load, int64_t replicas, int64_t later_devices) {
  if (q.memory_bytes == 0) return true;
  const int64_t depth = assumed_in_flight(q, later_devices, replicas);
  return stage_memory(load, replicas, depth, q.inputs).total_bytes() <= q.memory_bytes;
}

bool within(const Question& q, const StageLoad& load, int64_t replicas, int64_t later_devices,
            double period) {
  return fits(q, load, replicas, later_devices) &&
         q.model->period(load, replicas, q.inputs).total_seconds() <= period;
}

/// Smallest number of replicas in [least, most] with which the stage is within period and memory; 0 if there
/// is none. From 2 on neither grows with the replicas, so bisection finds it; 1, which needs no reduction,
/// stands apart.
int64_t fewest_replicas(const Question& q, const StageLoad& load, int64_t least, int64_t most,
                        int64_t later_devices, double period) {
  if (most < least) return 0;
  if (least == 1) {
    if (within(q, load, 1, later_devices, period)) return 1;
    least = 2;
  }
  if (most < least || !within(q, load, most, later_devices, period)) return 0;
  while (least < most) {
    const int64_t middle = least + (most - least) / 2;
    if (within(q, load, middle, later_devices, period)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

void finish(const Question& q, Answer* answer) {
  for (const FoundStage& stage : answer->stages) {
    const StageLoad load = load_between(*q.states, stage.from, stage.to);
    const double period = q.model->period(load, stage.replicas, q.inputs).total_seconds();
    answer->period_seconds = std::max(answer->period_seconds, period);
    answer->devices += stage.replicas;
  }
}

/// Fewest devices for a period: planners' g(i), once for any suffix and, if asked for, once for suffixes that
/// hold a replicated stage. `levels_of`: the periods of all stages, slowest first, as parts of this one, are
/// the next aim.
std::optional<Answer> fewest_devices_within(const Question& q, double period,
                                            std::optional<double> levels_of = {}) {
  const States& states = *q.states;
  const int last = states.last();
  const int tables = q.replicated ? 2 : 1;
  std::vector<std::vector<Suffix>> best(tables, std::vector<Suffix>(states.size()));
  best[0][last].possible = true;

  for (int i = last - 1; i >= 0; --i) {
    const int64_t cut_bytes = states.states[i].cut_bytes;
    for (const int j : states.after(i)) {
      if (!best[0][j].possible || !stage_allowed(q, i, j)) continue;
      // No model is faster than its compute shared out evenly.
      const double least_replicas = compute_between(states, i, j) / period * (1 - kTolerance);
      if (least_replicas > static_cast<double>(q.devices - best[0][j].devices)) continue;
      const StageLoad load = load_of(q, i, j);
      for (int wanted = 0; wanted < tables; ++wanted) {  // the suffix from i must hold a replicated stage
        for (int rest = wanted; rest >= 0; --rest) {     // the suffix from j holds it
          const Suffix& after = best[rest][j];
          if (!after.possible) continue;
          Suffix& held = best[wanted][i];
          int64_t most = std::min(q.most_replicas, q.devices - after.devices);
          if (held.possible) most = std::min(most, held.devices - after.devices);
          if (least_replicas > static_cast<double>(most)) continue;
          const int64_t replicas =
              fewest_replicas(q, load, wanted > rest ? 2 : 1, most, after.devices, period);
          if (replicas == 0) continue;
          Suffix found;
          found.possible = true;
          found.devices = after.devices + replicas;
          if (held.possible && found.devices > held.devices) continue;
          if (levels_of) {
            const double mine = q.model->period(load, replicas, q.inputs).total_seconds();
            found.add_level(level_of(mine, *levels_of), after.levels);
          }
          found.stages = after.stages + 1;
          found.bytes = after.bytes + cut_bytes;
          found.next = j;
          found.replicas = replicas;
          found.rest_replicated = rest == 1;
          if (found.better_than(held)) held = std::move(found);
        }
      }
    }
  }

  int table = tables - 1;
  if (!best[table][0].possible) return std::nullopt;
  Answer answer;
  for (int i = 0; i != last;) {
    const Suffix& suffix = best[table][i];
    answer.stages.push_back({i, suffix.next, suffix.replicas});
    table = suffix.rest_replicated ? 1 : 0;
    i = suffix.next;
  }
  finish(q, &answer);
  return answer;
}

/// Exactly `devices` devices: a table by state and number of devices. `least_period` makes the period the
/// only aim that counts; otherwise, under `period`, the periods of all stages as parts of
/// `levels_of` are, if given, then stages and bytes.
std::optional<Answer> exactly_all_devices(const Question& q, double period, bool least_period,
                                          std::optional<double> levels_of = {}) {
  const States& states = *q.states;
  const int last = states.last();
  const int tables = q.replicated ? 2 : 1;
  using Row = std::vector<Suffix>;  // by number of devices
  std::vector<std::vector<Row>> best(tables, std::vector<Row>(states.size(), Row(q.devices + 1)));
  best[0][last][0].possible = true;

  for (int i = last - 1; i >= 0; --i) {
    const int64_t cut_bytes = states.states[i].cut_bytes;
    for (const int j : states.after(i)) {
      if (!stage_allowed(q, i, j)) continue;
      const StageLoad load = load_of(q, i, j);
      for (int64_t replicas = 1; replicas <= std::min(q.most_replicas, q.devices); ++replicas) {
        const double mine = q.model->period(load, replicas, q.inputs).total_seconds();
        if (mine > period) continue;
        for (int64_t later = 0; later + replicas <= q.devices; ++later) {
          if (!best[0][j][later].possible || !fits(q, load, replicas, later)) continue;
          for (int wanted = 0; wanted < tables; ++wanted) {
            for (int rest = wanted; rest >= 0; --rest) {
              const Suffix& after = best[rest][j][later];
              if (!after.possible || (wanted > rest && replicas < 2)) continue;
              Suffix found;
              found.possible = true;
              if (least_period) found.period_seconds = std::max(mine, after.period_seconds);
              if (levels_of) found.add_level(level_of(mine, *levels_of), after.levels);
              found.stages = after.stages + 1;
              found.bytes = after.bytes + cut_bytes;
              found.next = j;
              found.replicas = replicas;
              found.rest_replicated = rest == 1;
              found.rest_devices = later;
              Suffix& held = best[wanted][i][later + replicas];
              if (found.better_than(held)) held = std::move(found);
            }
          }
        }
      }
    }
  }

  int table = tables - 1;
  int64_t devices = q.devices;
  if (!best[table][0][devices].possible) return std::nullopt;
  Answer answer;
  for (int i = 0; i != last;) {
    const Suffix& suffix = best[table][i][devices];
    answer.stages.push_back({i, suffix.next, suffix.replicas});
    table = suffix.rest_replicated ? 1 : 0;
    devices = suffix.rest_devices;
    i = suffix.next;
  }
  finish(q, &answer);
  return answer;
}

std::optional<Answer> one_stage(const Question& q) {
  const StageLoad load = load_of(q, 0, q.states->last());
  if (!fits(q, load, q.devices, 0)) return std::nullopt;
  Answer answer;
  answer.stages = {{0, q.states->last(), q.devices}};
  finish(q, &answer);
  return answer;
}

/// Any answer within the memory, whatever it takes.
std::optional<Answer> any_answer(const Question& q) {
  if (q.single_stage) return one_stage(q);
  return q.all_devices ? exactly_all_devices(q, kNoLimit, false) : fewest_devices_within(q, kNoLimit);
}

}  // namespace

int64_t assumed_in_flight(const Question& q, int64_t later_devices, int64_t replicas) {
  if (q.one_in_flight) return 1;
  return std::min(in_flight_bound(later_devices, replicas) + q.extra_in_flight, kMostInFlight);
}

std::optional<Answer> search(const Question& q) {
  PW_CHECK(q.states->size() >= 2, "the empty and the full set are states");
  if (q.single_stage) return one_stage(q);
  if (q.all_devices) {
    const std::optional<Answer> fastest = exactly_all_devices(q, kNoLimit, true);
    if (!fastest) return fastest;
    // With one minibatch in flight no stage waits for a slower one: what crosses the cuts adds up instead.
    std::optional<double> levels_of;
    if (!q.one_in_flight) levels_of = fastest->period_seconds;
    return exactly_all_devices(q, fastest->period_seconds * (1 + kTolerance), false, levels_of);
  }

  std::optional<Answer> best = any_answer(q);
  if (!best) return best;
  double high = best->period_seconds;  // achieved
  const State& whole = q.states->states.back();
  double low =
      (whole.forward_seconds + whole.backward_seconds) / static_cast<double>(q.devices) * (1 - kTolerance);
  // `low` is a bound; every other value that `low` takes was tried and found impossible. Each success brings
  // `high` down to what the plan found really takes. Every other try is just below `high`: it is the last one
  // as soon as `high` is the best there is, which the bisection would only close in on.
  const auto tried = [&](double period) {
    const std::optional<Answer> found = fewest_devices_within(q, period);
    if (found) {
      high = std::min(period, found->period_seconds);
    } else {
      low = period;
    }
  };
  while (high - low > kProof * high) {
    tried(low + (high - low) / 2);
    if (high - low < kNear * high && high - low > kProof * high) tried(high * (1 - kProof));
  }
  best = fewest_devices_within(q, high * (1 + kTolerance), high);
  PW_CHECK(best.has_value(), "a period that was achieved stays possible");
  return best;
}

FullestStage fullest_stage(const Question& q, const Answer& answer) {
  FullestStage fullest;
  int64_t later = answer.devices;
  for (size_t s = 0; s < answer.stages.size(); ++s) {
    const FoundStage& stage = answer.stages[s];
    later -= stage.replicas;
    StageLoad load = load_between(*q.states, stage.from, stage.to);
    load.workspace_bytes = workspace_between(*q.states, stage.from, stage.to);
    const StageMemory memory =
        stage_memory(load, stage.replicas, assumed_in_flight(q, later, stage.replicas), q.inputs);
    if (s == 0 || memory.total_bytes() > fullest.memory.total_bytes())
      fullest = {static_cast<int>(s), memory};
  }
  return fullest;
}

std::optional<Answer> search_least_memory(const Question& question) {
  Question q = question;
  q.memory_bytes = 0;
  std::optional<Answer> best = any_answer(q);
  if (!best) return best;
  int64_t high = fullest_stage(q, *best).memory.total_bytes();
  int64_t low = 0;
  while (high - low > 1) {
    q.memory_bytes = low + (high - low) / 2;
    std::optional<Answer> found = any_answer(q);
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

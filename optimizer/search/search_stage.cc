#include "optimizer/search/search_stage.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "optimizer/cost/stage_memory.h"

namespace pipewright::search_detail {
namespace {

/// Periods of stages are compared in so many parts of the plan's period: stages that are equal but for
/// rounding are equal. A power of two, so that simple ratios are not on the border between two parts.
constexpr double kLevels = 1 << 30;

}  // namespace

void Suffix::add_level(int32_t level, const std::vector<int32_t>& rest) {
  levels.reserve(rest.size() + 1);
  levels = rest;
  levels.insert(std::upper_bound(levels.begin(), levels.end(), level, std::greater<>()), level);
}

int32_t level_of(double stage_period, double period) {
  return period > 0 ? static_cast<int32_t>(std::lround(stage_period / period * kLevels)) : 0;
}

StageLoad load_of(const Problem& q, int from, int to) {
  StageLoad load = load_between(*q.states, from, to);
  load.recompute = q.recompute == Recompute::kAlways;
  if (q.least_depths) {
    const State& before = q.states->states[from];
    const State& whole = q.states->states.back();
    load.behind_seconds =
        whole.forward_seconds - before.forward_seconds + whole.backward_seconds - before.backward_seconds;
  }
  if (q.memory_bytes > 0) load.workspace = workspace_between(*q.states, from, to);
  return load;
}

bool stage_allowed(const Problem& q, int from, int to) {
  return q.least_stages < 2 || from != 0 || to != q.states->last();
}

std::optional<bool> recompute_to_fit(const Problem& q, StageLoad load, int64_t replicas,
                                     int64_t later_devices, int64_t memory_bytes) {
  const bool always = q.recompute == Recompute::kAlways;
  if (memory_bytes == 0) return always;
  const int64_t depth = assumed_in_flight(q, later_devices, replicas, load.behind_seconds);
  const auto fits = [&](bool recompute) {
    load.recompute = recompute;
    return stage_memory(load, replicas, depth, q.inputs).total_bytes() <= memory_bytes;
  };
  if (!always && fits(false)) return false;
  if (q.recompute != Recompute::kNever && fits(true)) return true;
  return std::nullopt;
}

std::vector<int64_t> ranks_in_row(const Problem& q, int64_t replicas, int64_t later_devices) {
  if (!q.inputs.placed()) return {};
  PW_CHECK(replicas == 1, "in a row stands a stage on each device, not " << replicas << " replicas");
  return {later_devices};
}

double fitted_period(const Problem& q, StageLoad load, int64_t replicas, int64_t later_devices) {
  const std::vector<int64_t> ranks = ranks_in_row(q, replicas, later_devices);
  const auto recompute =
      recompute_to_fit(q, load, replicas, later_devices, memory_limit_bytes(q.inputs, q.memory_bytes, ranks));
  if (!recompute) return kNoLimit;
  load.recompute = *recompute;
  StagePeriod period = stage_period(load, replicas, q.inputs);
  if (!ranks.empty() && !q.inputs.speeds.empty())
    period.compute_seconds = compute_seconds_on(load, q.inputs, ranks[0]);
  return period.total_seconds();
}

StageOption option_of(const Problem& q, int from, int to) {
  StageOption stage;
  stage.load = load_of(q, from, to);
  stage.terms = stage_terms(stage.load, q.inputs);
  stage.recomputing = stage.terms;
  if (q.recompute == Recompute::kWhereNeeded && q.memory_bytes > 0) {
    StageLoad again = stage.load;
    again.recompute = true;
    stage.recomputing = stage_terms(again, q.inputs);
  }
  return stage;
}

bool within(const Problem& q, const StageOption& stage, int64_t replicas, int64_t later_devices,
            double period) {
  if (!(stage.terms.period(replicas).total_seconds() <= period)) return false;
  if (q.memory_bytes == 0) return true;
  const std::optional<bool> recompute =
      recompute_to_fit(q, stage.load, replicas, later_devices, q.memory_bytes);
  return recompute && (!*recompute || stage.recomputing.period(replicas).total_seconds() <= period);
}

int64_t fewest_replicas(const Problem& q, const StageOption& stage, int64_t least, int64_t most,
                        int64_t later_devices, double period) {
  const StageTerms& terms = stage.terms;
  const auto within = [&](int64_t m) { return search_detail::within(q, stage, m, later_devices, period); };
  if (most < least) return 0;
  if (least == 1) {
    if (within(1)) return 1;
    least = 2;
  }
  // From 2 on neither period nor memory grows with the replicas, so bisection finds the least.
  if (most < least || !within(most)) return 0;
  // Close to it already: work that does not shrink with m, shared out.
  if (const double shared = (terms.compute_seconds + terms.step_seconds + terms.exchange_latency_seconds +
                             terms.exchange_seconds / 2) /
                            period;
      shared > static_cast<double>(least)) {
    const auto near = static_cast<int64_t>(shared * (1 - kTolerance));
    if (near > most) return 0;
    least = std::max(least, near);
  }
  // Mostly it is just there: look in steps that double.
  for (int64_t step = 1; least + step < most; step *= 2) {
    if (within(least + step - 1)) {
      most = least + step - 1;
      break;
    }
    least += step;
  }
  return least_that(least, most, within);
}

void finish(const Problem& q, Solution* solution) {
  for (auto stage = solution->stages.rbegin(); stage != solution->stages.rend(); ++stage) {
    const StageLoad load = load_of(q, stage->from, stage->to);
    stage->ranks = ranks_in_row(q, stage->replicas, solution->devices);
    const auto recompute = recompute_to_fit(q, load, stage->replicas, solution->devices,
                                            memory_limit_bytes(q.inputs, q.memory_bytes, stage->ranks));
    PW_CHECK(recompute.has_value(), "the stages of a solution fit");
    stage->recompute = *recompute;
    const double period = fitted_period(q, load, stage->replicas, solution->devices);
    solution->period_seconds = std::max(solution->period_seconds, period);
    solution->devices += stage->replicas;
  }
}

}  // namespace pipewright::search_detail

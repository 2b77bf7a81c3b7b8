#include "optimizer/plan/slow_links.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/memory_check.h"
#include "optimizer/plan/renamed_ranks.h"

namespace pipewright {
namespace {

/// What takes off less is no improvement.
constexpr double kBetter = 0.999;

/// The slowest stage's messages of a minibatch, and all of them together.
std::pair<double, double> message_seconds_of(const Plan& plan, const std::vector<StageTimes>& times) {
  double most = 0, sum = 0;
  for (size_t s = 0; s < times.size(); ++s) {
    most =
        std::max(most, message_period_seconds(times[s], static_cast<int64_t>(plan.stages[s].ranks.size())));
    sum += times[s].send_activation_seconds + times[s].send_gradient_seconds + times[s].reduce_seconds;
  }
  return {most, sum};
}

Plan deepened_by(int64_t deeper, Plan plan) {
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s)
    if (!plan.stages[s].frozen) plan.stages[s].in_flight += deeper;
  return plan;
}

void swap_ranks(Plan* plan, int64_t a, int64_t b) {
  for (Stage& stage : plan->stages)
    for (int64_t& rank : stage.ranks) rank = rank == a ? b : rank == b ? a : rank;
}

/// The swap that takes most off the messages, if one does. `quiet`: the plan's times without slow links;
/// whoever changes places is as fast.
std::optional<std::pair<int64_t, int64_t>> best_swap(const Plan& plan, const PlanCost& quiet,
                                                     const Topology& topology, const SlowLinks& links) {
  const auto messages = [&](const Plan& of) {
    return message_seconds_of(of, slowed(quiet.times, of.stages, quiet.loads, links));
  };
  auto least = messages(plan);
  std::optional<std::pair<int64_t, int64_t>> best;
  std::set<int64_t> ends;
  for (const SlowLink& link : links) ends.insert({link.from, link.to});
  for (const int64_t end : ends) {
    for (int64_t other = 0; other < topology.device_count(); ++other) {
      if (other == end || !may_change_places(topology, end, other)) continue;
      Plan swapped = plan;
      swap_ranks(&swapped, end, other);
      const auto seconds = messages(swapped);
      const bool better = seconds.first < kBetter * least.first ||
                          (seconds.first <= least.first && seconds.second < kBetter * least.second);
      if (!better) continue;
      least = seconds;
      best = {end, other};
    }
  }
  return best;
}

bool fits(const Plan& plan, const PlanCost& cost, const Topology& topology) {
  Prediction prediction;
  prediction.stages = stage_predictions(plan, cost);
  return memory_deficits(plan, prediction, prediction, topology).empty();
}

}  // namespace

int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to) {
  const std::vector<StageLoad> loads = loads_of_plan(plan, Dataflow(profile, {}));
  const auto has = [&](size_t stage, int64_t rank) {
    const std::vector<int64_t>& ranks = plan.stages[stage].ranks;
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  for (size_t s = 0; s + 1 < plan.stages.size(); ++s) {
    if (has(s, from) && has(s + 1, to)) return loads[s].out_bytes;
    if (has(s + 1, from) && has(s, to)) return loads[s + 1].in_bytes;
  }
  return 0;
}

Plan clear_of_slow_links(Plan plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request) {
  if (request.slow_links.empty() || topology.levels.size() > 1) return plan;
  PlanRequest without = request;
  without.slow_links.clear();
  PlanCost quiet = cost_of_plan(plan, profile, topology, without);
  for (size_t swaps = 0; swaps <= 2 * request.slow_links.size(); ++swaps) {
    const auto swap = best_swap(plan, quiet, topology, request.slow_links);
    if (!swap) break;
    swap_ranks(&plan, swap->first, swap->second);
    quiet = PlanCost(plan, quiet.loads, quiet.inputs);
  }
  return plan;
}

Plan deepened_plan(Plan plan, const Profile& profile, const Topology& topology, const PlanRequest& request) {
  // The minibatches of an update say how many may be in flight.
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.one_update_for_all || rule.bounds_crossing) return plan;
  const PlanCost cost = cost_of_plan(plan, profile, topology, request);  // no time depends on depths
  double least = price_seconds(plan, cost);
  int64_t deepest = 0;
  for (int64_t deeper = 1; deeper <= kMostDeeper; ++deeper) {
    const Plan deep = deepened_by(deeper, plan);
    if (!fits(deep, cost, topology)) break;
    const double seconds = price_seconds(deep, cost);
    if (seconds >= 0.99 * least) continue;
    least = seconds;
    deepest = deeper;
  }
  if (deepest == 0) return plan;
  plan = deepened_by(deepest, std::move(plan));
  plan.predicted.reset();
  return plan;
}

}  // namespace pipewright

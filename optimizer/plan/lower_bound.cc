#include "optimizer/plan/lower_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "graph/pipeline_rules.h"
#include "graph/strategies.h"
#include "optimizer/cost/placed.h"
#include "optimizer/plan/run_rules.h"

namespace pipewright {
namespace {

/// Bounds are lower by this part, for sums in another order.
constexpr double kBoundRounding = 1e-9;

bool overlaps_on_equal_devices(const Problem& q, const PlanRequest& request) {
  return runs_overlapping(q, request) && !q.inputs.devices_differ();
}

/// Minibatches come to the replicas one by one in turn, and no update waits for all of them.
bool in_turn(const Problem& q, const PlanRequest& request) {
  return overlaps_on_equal_devices(q, request) && !drains(request) &&
         !weight_rule_facts(request.weights).needs_equal_turns();
}

/// Of all machines together, where ranks are more than these; infinite where each rank has its own.
double shared_core_count(const Problem& q) {
  const SharedCores& shared = q.inputs.cores;
  if (!shared.too_few_for(q.devices) || !q.inputs.paces.empty())
    return std::numeric_limits<double>::infinity();
  const int64_t machines = q.devices / shared.devices, rest = q.devices % shared.devices;
  return static_cast<double>(machines * std::min(shared.cores, shared.devices) +
                             std::min(shared.cores, rest));
}

/// All devices' pace together: of these, not of a plan's alone.
double pace_of_all(const Problem& q) {
  if (q.inputs.paces.empty()) return static_cast<double>(q.devices);
  return std::accumulate(q.inputs.paces.begin(), q.inputs.paces.begin() + q.devices, 0.0);
}

/// As if each rank had a core of its own, but for the work that all of them share.
double bound_on_own_cores(const Problem& q, const PlanRequest& request, const WideSolution* wide,
                          const Solution& solution) {
  const State& whole = q.states->states.back();
  const double fastest = q.inputs.paces.empty()
                             ? 1
                             : *std::max_element(q.inputs.paces.begin(), q.inputs.paces.begin() + q.devices);
  const double shared = whole.least_seconds / pace_of_all(q) * (1 - kBoundRounding);
  if (q.one_in_flight) {
    double ahead = 0;  // of the frozen prefix, which may begin the next minibatch
    for (const State& state : q.states->states)
      if (state.frozen) ahead = std::max(ahead, state.least_seconds);
    return std::max(shared, (whole.least_seconds - ahead) / fastest * (1 - kBoundRounding));
  }
  if (schedule_facts(request.schedule).several_stages || begins_with_known(request)) return shared;
  // The search has an update after every turn of a stage's replicas.
  if (!q.single_stage && !request.weights.empty() && weight_rule_facts(request.weights).bounds_crossing)
    return shared;
  const bool exact = q.states->exact;
  // Of cuts that are no use to the best of all some may be of use to the best of several stages.
  const bool formula_has_it = !q.inputs.placed() && q.memory_bytes == 0 && q.least_stages == 1 &&
                              q.inputs.minibatches_per_update == 0;
  if (overlaps_on_equal_devices(q, request) && !q.single_stage && exact && !formula_has_it) {
    Problem roomy = q;
    roomy.least_stages = 1;
    roomy.replicated = false;
    if (!in_turn(q, request)) roomy.memory_bytes = 0;  // its depths are not those of such plans
    return std::max(shared, least_period_anywhere(roomy));
  }
  // solve() has plans that are less deep than the search keeps room for.
  const bool shallower = q.memory_bytes > 0 && !q.single_stage && overlaps_on_equal_devices(q, request);
  if (shallower && !drains(request) && !in_turn(q, request)) return shared;
  if (q.inputs.placed()) {
    if (!q.single_stage) return shared;
    // The solution has the direct exchange of gradients.
    Problem any = q;
    if (rings_take_less(q.inputs)) any.inputs.exchange_factor = 0;
    const std::optional<Solution> found = search(any);
    return found ? found->period_seconds * (1 - kBoundRounding) : shared;
  }
  // On one level the search takes the exchange of update intervals for too long.
  if (q.inputs.minibatches_per_update > 0) return shared;
  return wide != nullptr ? std::max(wide->bound_seconds, shared)
                         : solution.period_seconds * (1 - kBoundRounding);
}

}  // namespace

double work_bound_seconds(const Problem& q) {
  const double work = q.states->states.back().least_seconds;
  return std::max(work / shared_core_count(q), work / pace_of_all(q)) * (1 - kBoundRounding);
}

double bound_seconds(const Problem& q, const PlanRequest& request, const WideSolution* wide,
                     const Solution& solution) {
  const double least = q.states->states.back().least_seconds / shared_core_count(q);
  return std::max(least * (1 - kBoundRounding), bound_on_own_cores(q, request, wide, solution));
}

std::string family_of(const PlanRequest& request, const Problem& q) {
  const bool model_parallel = q.one_in_flight;
  std::string text =
      (searched_strategy(request.strategy).kind == StrategyKind::kBest ? "" : request.strategy + " ") +
      "plan";
  if (!model_parallel) text += " of schedule " + request.schedule + " with weights " + request.weights;
  if (q.inputs.minibatches_per_update > 0)
    text += ", " + std::to_string(q.inputs.minibatches_per_update) + " microbatches";
  if (request.constraints.any()) text += ", with these constraints on stages";
  if (request.use_all_devices) text += ", on all devices";
  const bool replicas = q.most_replicas > 1 && !q.single_stage;
  return in_turn(q, request) && replicas ? text + " whose replicas take turns one by one" : text;
}

}  // namespace pipewright

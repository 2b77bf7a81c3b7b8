#include "optimizer/price/plan_cost.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "optimizer/cost/placed.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

/// Of the inputs what the plan says.
CostInputs as_run(const Plan& plan, CostInputs inputs) {
  inputs.weights = weight_rule_named(plan.weights);
  inputs.minibatches_per_update = facts_of(inputs.weights).one_update_for_all ? plan.microbatches : 0;
  inputs.pipeline_depth = plan.first_trained_depth();
  inputs.split_backward = plan.splits_backward();
  inputs.one_at_a_time = runs_one_at_a_time(plan);
  inputs.input_threads = input_threads(ranks_on_host(plan.stages[0], plan.world_size, inputs), inputs);
  return inputs;
}

bool on_one_host(const Stage& stage, const CostInputs& inputs) {
  return std::all_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) {
    return rank / inputs.host_ranks == stage.ranks[0] / inputs.host_ranks;
  });
}

/// Two or more of the stage are in one innermost group.
bool has_replicas_on_one_host(const Stage& stage, const CostInputs& inputs) {
  std::set<int64_t> hosts;
  for (const int64_t rank : stage.ranks) hosts.insert(rank / inputs.host_ranks);
  return hosts.size() < stage.ranks.size();
}

/// All of its devices are of the profile's kind.
bool is_as_profiled(const Stage& stage, const CostInputs& inputs) {
  return std::all_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) {
    const auto device = static_cast<size_t>(rank);
    return (inputs.classes.empty() || inputs.classes[device] == 0) &&
           (inputs.speeds.empty() || inputs.speeds[device] == 1);
  });
}

}  // namespace

bool runs_one_at_a_time(const Plan& plan) {
  return schedule_facts(plan.schedule).kind == ScheduleKind::kModelParallel;
}

int64_t ranks_on_host(const Stage& stage, int64_t world_size, const CostInputs& inputs) {
  int64_t most = 1;
  for (const int64_t rank : stage.ranks) {
    const int64_t first = rank / inputs.host_ranks * inputs.host_ranks;
    most = std::max(most, std::min(world_size, first + inputs.host_ranks) - first);
  }
  return most;
}

CrowdFactors crowd_of(const Stage& stage, int64_t world_size, const CostInputs& inputs) {
  if (!is_as_profiled(stage, inputs)) return {};
  return crowd_factors(ranks_on_host(stage, world_size, inputs), has_replicas_on_one_host(stage, inputs),
                       inputs);
}

namespace {

std::vector<StageLoad> with_later_devices(const Plan& plan, std::vector<StageLoad> loads) {
  std::vector<int64_t> replicas;
  for (const Stage& stage : plan.stages) replicas.push_back(std::ssize(stage.ranks));
  set_later_devices(replicas, &loads);
  return loads;
}

std::vector<StageTimes> times_of(const Plan& plan, const std::vector<StageLoad>& loads,
                                 const CostInputs& inputs) {
  std::vector<StageTimes> times;
  if (inputs.placed()) {
    times = placed_times(loads, plan.stages, inputs);
  } else {
    for (size_t s = 0; s < loads.size(); ++s) {
      times.push_back(stage_times(loads[s], static_cast<int64_t>(plan.stages[s].ranks.size()), inputs));
      add_message_ends(loads[s], 0, 0, inputs, &times.back());
    }
  }
  if (!inputs.slow_links.empty()) times = slowed(std::move(times), plan.stages, loads, inputs.slow_links);
  for (size_t s = 0; s < times.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    add_loading(loads[s], replicas, inputs, &times[s]);
    times[s] = crowded(times[s], crowd_of(plan.stages[s], plan.world_size, inputs));
    times[s] = calibrated(times[s], replicas, ranks_on_host(plan.stages[s], plan.world_size, inputs), inputs);
  }
  return times;
}

SimulationOptions shared_by_ranks(const Plan& plan, const std::vector<StageLoad>& loads,
                                  const CostInputs& inputs) {
  SimulationOptions how;
  how.cores = inputs.cores;
  how.sums_take_cores = inputs.sums_take_cores;
  if (inputs.own_links() && !how.cores.too_few_for(plan.world_size)) return how;
  for (const Placement& at : placements(shape_of(plan)))
    how.devices.push_back(plan.stages[static_cast<size_t>(at.stage)].ranks[static_cast<size_t>(at.replica)]);
  if (inputs.own_links()) return how;
  how.network = inputs.levels;
  for (size_t s = 0; s < loads.size(); ++s) {
    const auto replicas = static_cast<int64_t>(plan.stages[s].ranks.size());
    how.messages.push_back(
        {loads[s].out_bytes, loads[s].in_bytes,
         static_cast<int64_t>(std::ceil(
             ring_part(plan.stages[s].ranks, inputs) *
             priced_exchange_bytes(loads[s], replicas, inputs, on_one_host(plan.stages[s], inputs))))});
  }
  return how;
}

}  // namespace

PlanCost::PlanCost(const Plan& plan, std::vector<StageLoad> loads_of_stages, CostInputs of_devices)
    : inputs(as_run(plan, of_devices)),
      deepest(of_devices.pipeline_depth),
      loads(with_later_devices(plan, std::move(loads_of_stages))),
      times(times_of(plan, loads, inputs)),
      shared(shared_by_ranks(plan, loads, inputs)) {}

}  // namespace pipewright

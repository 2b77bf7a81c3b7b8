#include "optimizer/commands/sync_choice.h"

#include <algorithm>
#include <cstdio>

#include "graph/error.h"
#include "graph/sync_rules.h"
#include "graph/units.h"
#include "optimizer/commands/plan_inputs.h"
#include "optimizer/commands/sync_comparison.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/side_by_side.h"

namespace pipewright {
namespace {

bool is_side_by_side(const Plan& plan, const std::string& sync) {
  if (plan.stages.front().ranks.size() == 1 || shape_of(plan).stages_per_rank > 1) return false;
  try {
    check_side_by_side(plan, "none", 1);  // all-reduce alone does not need pipelines
    check_side_by_side(plan, sync, 1);
    return true;
  } catch (const PlanError&) {
    return false;
  }
}

double seconds_held_equal(const Plan& plan, const Inputs& inputs, int64_t minibatches,
                          const Disturbances* disturbances) {
  const PlanCost cost = cost_as_run(plan, inputs);
  SimulationOptions how = cost.shared;
  how.disturbances = disturbances;
  return simulate(plan.schedule, shape_of(plan), cost.times, Span{0, minibatches}, how).total_seconds;
}

/// Of the whole run; nothing: the plan cannot be trained so.
std::optional<double> seconds_under(const std::string& sync, const Plan& plan, const Inputs& inputs,
                                    int64_t minibatches, const Disturbances* disturbances) {
  if (is_side_by_side(plan, sync))
    return compare_syncs(plan, inputs, {sync}, minibatches, disturbances).front().run.total_seconds;
  if (!sync_facts(sync).keeps_replicas_equal) return std::nullopt;
  return seconds_held_equal(plan, inputs, minibatches, disturbances);
}

/// The fastest by which weights do not drift until the end; nothing if there is none. `only_equal`: of rules
/// that keep replicas equal.
const SyncChoice* fastest_of(const std::vector<SyncChoice>& choices, bool only_equal) {
  const SyncChoice* fastest = nullptr;
  for (const SyncChoice& choice : choices) {
    const SyncFacts& facts = sync_facts(choice.sync);
    if (!choice.fastest || !(facts.keeps_replicas_equal || (!only_equal && facts.averages_weights))) continue;
    if (!fastest || choice.minibatch_seconds < fastest->minibatch_seconds) fastest = &choice;
  }
  return fastest;
}

std::string name_of(const SyncChoice& choice, const Comparison& comparison) {
  return comparison.contenders[*choice.fastest].name + " with " + choice.sync;
}

}  // namespace

std::vector<SyncChoice> choose_for_syncs(const Comparison& comparison, const Inputs& inputs,
                                         const std::vector<std::string>& syncs, int64_t minibatches,
                                         const Disturbances* disturbances) {
  std::vector<SyncChoice> choices;
  for (const std::string& sync : syncs) {
    SyncChoice choice;
    choice.sync = sync;
    for (size_t i = 0; i < comparison.contenders.size(); ++i) {
      const std::optional<Plan>& plan = comparison.contenders[i].plan;
      const auto total = plan ? seconds_under(sync, *plan, inputs, minibatches, disturbances) : std::nullopt;
      if (!total) continue;
      const double each = *total / static_cast<double>(minibatches);
      if (choice.fastest && each >= choice.minibatch_seconds) continue;
      choice.fastest = i;
      choice.minibatch_seconds = each;
    }
    choices.push_back(choice);
  }
  return choices;
}

TextTable sync_choice_table(const std::vector<SyncChoice>& choices, const Comparison& comparison) {
  using Side = TableColumn::Side;
  TextTable table({{"sync", Side::kLeft},
                   {"strategy", Side::kLeft},
                   {"stages", Side::kLeft, 1, 12},
                   {"minibatch"},
                   {"times the fastest held equal"}});
  const SyncChoice* equal = fastest_of(choices, /*only_equal=*/true);
  for (const SyncChoice& choice : choices) {
    if (!choice.fastest) {
      table.add({choice.sync, "-", "-", "-", "-"});
      continue;
    }
    const Contender& taken = comparison.contenders[*choice.fastest];
    char gain[32] = "-";
    if (equal) std::snprintf(gain, sizeof gain, "%.2f", equal->minibatch_seconds / choice.minibatch_seconds);
    table.add(
        {choice.sync, taken.name, taken.plan->shape_text(), format_seconds(choice.minibatch_seconds), gain});
  }
  return table;
}

std::string sync_choice_advice(const std::vector<SyncChoice>& choices, const Comparison& comparison) {
  const SyncChoice* equal = fastest_of(choices, /*only_equal=*/true);
  const SyncChoice* any = fastest_of(choices, /*only_equal=*/false);
  if (!any) return "None of the plans can be trained under these rules.";
  if (!equal) return "Take " + name_of(*any, comparison) + ".";
  const double gain = equal->minibatch_seconds / any->minibatch_seconds;
  if (gain < kSyncWorthIt) {
    return "Take " + name_of(*equal, comparison) +
           ": of what averages weights on the way nothing is faster by 10 %.";
  }
  char times[32];
  std::snprintf(times, sizeof times, "%.2f", gain);
  return "Take " + name_of(*any, comparison) + ": " + times + " times as fast as " +
         name_of(*equal, comparison) + ".";
}

Json sync_choice_json(const std::vector<SyncChoice>& choices, const Comparison& comparison) {
  Json json = Json::array();
  for (const SyncChoice& choice : choices) {
    Json& row = json.emplace_back();
    row["sync"] = choice.sync;
    if (!choice.fastest) continue;
    row["strategy"] = comparison.contenders[*choice.fastest].name;
    row["minibatch_seconds"] = choice.minibatch_seconds;
  }
  return json;
}

}  // namespace pipewright

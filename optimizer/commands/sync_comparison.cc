#include "optimizer/commands/sync_comparison.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/sync_rules.h"
#include "graph/units.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/side_by_side/simulate_pipelines.h"

namespace pipewright {
namespace {

// Another way to train has to gain so much.
constexpr double kWorthIt = 1.1;

std::string numbers(const std::vector<int64_t>& values) {
  std::vector<std::string> words;
  for (const int64_t value : values) words.push_back(std::to_string(value));
  return words.empty() ? "-" : join(words, ", ");
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

std::vector<std::string> syncs_to_compare(const std::vector<std::string>& given) {
  std::vector<std::string> syncs;
  for (const std::string& word : given) {
    if (word != "all") {
      check_sync(word);
      syncs.push_back(word);
      continue;
    }
    for (const SyncFacts& row : sync_rules()) syncs.emplace_back(row.name);
    syncs.emplace_back("none:minibatches=shared");
  }
  return syncs;
}

SyncComparison compare_syncs(const Plan& plan, const Inputs& inputs, const std::vector<std::string>& syncs,
                             int64_t minibatches, const Disturbances* disturbances) {
  const auto count = static_cast<int64_t>(plan.stages.front().ranks.size());
  for (const std::string& sync : syncs) check_side_by_side(plan, sync, 1);
  check_side_by_side(plan, "none", 1);  // what they are compared with needs its pipelines, too
  const Plan own = pipeline_of(plan, {0, count});
  PipelinesToSimulate what;
  what.schedule = own.schedule;
  what.pipeline = shape_of(own);
  if (what.pipeline.stages_per_rank > 1)
    throw PlanError("--sync: ranks with several stages are not simulated side by side",
                    "Give a plan of another schedule than '" + plan.schedule + "'.");
  what.times = MeasuredPlan(plan, inputs).times;
  for (int64_t p = 0; p < count; ++p) {
    Plan of_one = pipeline_of(plan, {p, count});
    of_one.world_size = plan.world_size;  // its ranks keep their numbers, and so their devices
    what.own_times.push_back(MeasuredPlan(of_one, inputs).times);
  }
  what.pipelines = count;
  what.minibatches = minibatches;
  what.disturbances = disturbances;
  for (const Stage& stage : plan.stages) what.ranks.push_back(stage.ranks);
  const auto simulated = [&](const std::string& sync) {
    what.sync = sync;
    return simulate_pipelines(what);
  };
  using Side = TableColumn::Side;
  TextTable table({{"sync", Side::kLeft},
                   {"all of it"},
                   {"minibatch"},
                   {"times all-reduce"},
                   {"waiting", Side::kRight, 1},
                   {"ahead", Side::kRight, 2},
                   {"longest window", Side::kRight, 4},
                   {"groups of 1, 2, ...", Side::kRight, 5},
                   {"minibatches of each", Side::kRight, 3}});
  const double together = simulated("all-reduce").total_seconds;
  std::pair<double, std::string> fastest{kWorthIt, ""};
  for (const std::string& sync : syncs) {
    const SimulatedPipelines run = simulated(sync);
    const double gain = together / run.total_seconds;
    if (sync_facts(sync).averages_weights) fastest = std::max(fastest, {gain, sync});
    table.add({sync, format_seconds(run.total_seconds),
               format_seconds(run.total_seconds / static_cast<double>(minibatches)), fixed(gain, 2),
               fixed(100 * run.waiting_fraction, 0) + " %", std::to_string(run.most_ahead_updates),
               run.group_sizes.empty() ? "-" : fixed(run.longest_window_updates, 1), numbers(run.group_sizes),
               numbers(run.minibatches)});
  }
  const std::string advice =
      fastest.second.empty()
          ? "Take all-reduce: of what averages weights on the way nothing is faster by 10 %."
          : "Take " + fastest.second + ": " + fixed(fastest.first, 2) + " times as fast as all-reduce.";
  return {std::move(table), advice};
}

}  // namespace pipewright

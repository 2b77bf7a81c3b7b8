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

namespace pipewright {
namespace {

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

std::vector<SyncRow> compare_syncs(const Plan& plan, const Inputs& inputs,
                                   const std::vector<std::string>& syncs, int64_t minibatches,
                                   const Disturbances* disturbances) {
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
  what.times = cost_as_run(plan, inputs).times;
  for (int64_t p = 0; p < count; ++p) {
    Plan of_one = pipeline_of(plan, {p, count});
    of_one.world_size = plan.world_size;  // its ranks keep their numbers, and so their devices
    what.own_times.push_back(cost_as_run(of_one, inputs).times);
  }
  what.pipelines = count;
  what.minibatches = minibatches;
  what.disturbances = disturbances;
  for (const Stage& stage : plan.stages) what.ranks.push_back(stage.ranks);
  const auto simulated = [&](const std::string& sync) {
    what.sync = sync;
    return simulate_pipelines(what);
  };
  const double together = simulated("all-reduce").total_seconds;
  std::vector<SyncRow> rows;
  for (const std::string& sync : syncs) {
    rows.push_back({sync, 1, minibatches, simulated(sync)});
    rows.back().gain = together / rows.back().run.total_seconds;
  }
  return rows;
}

TextTable sync_table(const std::vector<SyncRow>& rows) {
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
  for (const auto& [sync, gain, minibatches, run] : rows) {
    table.add({sync, format_seconds(run.total_seconds),
               format_seconds(run.total_seconds / static_cast<double>(minibatches)), fixed(gain, 2),
               fixed(100 * run.waiting_fraction, 0) + " %", std::to_string(run.most_ahead_updates),
               run.group_sizes.empty() ? "-" : fixed(run.longest_window_updates, 1), numbers(run.group_sizes),
               numbers(run.minibatches)});
  }
  return table;
}

std::string sync_advice(const std::vector<SyncRow>& rows) {
  std::pair<double, std::string> fastest{kSyncWorthIt, ""};
  for (const SyncRow& row : rows)
    if (sync_facts(row.sync).averages_weights) fastest = std::max(fastest, {row.gain, row.sync});
  if (fastest.second.empty())
    return "Take all-reduce: of what averages weights on the way nothing is faster by 10 %.";
  return "Take " + fastest.second + ": " + fixed(fastest.first, 2) + " times as fast as all-reduce.";
}

Json sync_json(const std::vector<SyncRow>& rows) {
  Json json = Json::array();
  for (const auto& [sync, gain, minibatches, run] : rows) {
    Json& row = json.emplace_back();
    row["sync"] = sync;
    row["times_all_reduce"] = gain;
    row["total_seconds"] = run.total_seconds;
    row["minibatch_seconds"] = run.total_seconds / static_cast<double>(minibatches);
    row["waiting_fraction"] = run.waiting_fraction;
    row["most_ahead_updates"] = run.most_ahead_updates;
    row["longest_window_updates"] = run.longest_window_updates;
    row["group_sizes"] = run.group_sizes;
    row["minibatches"] = run.minibatches;
  }
  return json;
}

}  // namespace pipewright

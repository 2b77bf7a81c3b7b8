#include "graph/pipeline_rules.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/rows.h"

namespace pipewright {

const std::vector<WeightRuleFacts>& weight_rules() {
  static const std::vector<WeightRuleFacts> rows = {
      {WeightRule::kStash, "stash", WeightLag::kOwnStage, false, "the latest weights there are"},
      {WeightRule::kVertical, "vertical", WeightLag::kFirstStage, false,
       "at every stage as many updates as the first stage had made"},
      {WeightRule::kTwoVersions, "2bw", WeightLag::kInterval, true,
       "one update interval behind, two versions"},
      {WeightRule::kFlush, "flush", WeightLag::kNone, true, "drained before every update, one version"},
      {WeightRule::kPaci, "paci", WeightLag::kOwnStage, false,
       "one version, of which a minibatch sees one update at most",
       /*in_place=*/true, /*bounds_crossing=*/true},
      {WeightRule::kPredict, "predict", WeightLag::kOwnStage, false,
       "one version, and what the optimizer expects of it while a forward runs", /*in_place=*/true,
       /*bounds_crossing=*/false, /*predicts=*/true},
  };
  return rows;
}

const WeightRuleFacts& facts_of(WeightRule rule) {
  for (const WeightRuleFacts& row : weight_rules())
    if (row.rule == rule) return row;
  PW_CHECK(false, "weight rule " << static_cast<int>(rule));
  return weight_rules().front();
}

std::vector<std::string> weight_rule_names() { return names_of(weight_rules()); }

WeightRule weight_rule_named(const std::string& name) {
  return row_named(weight_rules(), "weights", name).rule;
}

bool ScheduleFacts::goes_with(WeightRule rule) const {
  return std::find(weights.begin(), weights.end(), rule) != weights.end();
}

const std::vector<ScheduleFacts>& schedule_table() {
  using enum WeightRule;
  static const std::vector<ScheduleFacts> rows = {
      {.kind = ScheduleKind::k1F1B,
       .name = "1f1b",
       .weights = {kStash, kVertical, kTwoVersions, kPaci, kPredict},
       .depth = DepthChoice::kSearched,
       .summary = "asynchronous: one forward, one backward in turn, round robin over replicas"},
      {.kind = ScheduleKind::kModelParallel,
       .name = "model-parallel",
       .weights = {kStash},
       .summary = "one minibatch in flight for each replica of the first stage"},
      {.kind = ScheduleKind::kGpipe,
       .name = "gpipe",
       .weights = {kFlush},
       .holds_interval = true,
       .summary = "all forwards of an update, then all its backwards"},
      {.kind = ScheduleKind::k1F1BFlush,
       .name = "1f1b-flush",
       .weights = {kFlush},
       .depth = DepthChoice::kSearched,
       .summary = "one forward, one backward in turn, drained before each update"},
      {.kind = ScheduleKind::kInterleaved,
       .name = "interleaved",
       .weights = {kFlush},
       .several_stages = true,
       .summary = "1f1b-flush with several stages on each rank: shorter fill and drain"},
      {.kind = ScheduleKind::kZbH1,
       .name = "zb-h1",
       .weights = {kFlush},
       .splits_backward = true,
       .depth = DepthChoice::kAsTheFirst,
       .summary = "1f1b-flush with the backward in two parts: most of the fill and drain is used"},
      {.kind = ScheduleKind::kZbV,
       .name = "zbv",
       .weights = {kFlush},
       .several_stages = true,
       .v_shaped = true,
       .splits_backward = true,
       .summary =
           "zb-h1 with two stages on each rank, the first and the last on one: every rank holds as much"},
      {.kind = ScheduleKind::kDualPipeV,
       .name = "dualpipev",
       .weights = {kFlush},
       .several_stages = true,
       .v_shaped = true,
       .splits_backward = true,
       .summary = "two stages on each rank as zbv, a forward of one beside a backward of the other"},
      {.kind = ScheduleKind::kCustom,
       .name = "custom",
       .weights = {kFlush},
       .several_stages = true,
       .summary = "the order that the plan lists, such as one of PyTorch's"},
      {.kind = ScheduleKind::kForward,
       .name = "forward",
       .several_stages = true,
       .summary = "forward only: evaluation and prediction"},
  };
  return rows;
}

const ScheduleFacts* find_schedule(const std::string& name) { return find_row(schedule_table(), name); }

const ScheduleFacts& schedule_facts(const std::string& name) {
  return row_named(schedule_table(), "schedule", name);
}

}  // namespace pipewright

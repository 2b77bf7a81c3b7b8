#include "optimizer/commands/comparison_rows.h"

#include <algorithm>
#include <future>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/strategies.h"

namespace pipewright {
namespace {

const std::vector<ContenderRow>& contender_rows() {
  using Row = ContenderRow;
  static const std::vector<Row> rows = {
      {.name = kOneDevice,
       .strategy = "dp",
       .schedule = "1f1b",
       .weights = "",
       .interval = Row::kNoInterval,
       .one_device = true,
       .of_few = Row::kOfFew},
      {.name = kDataParallelism, .strategy = "dp", .of_few = Row::kOfFew},
      {.name = "model-parallel",
       .strategy = "model-parallel",
       .schedule = "1f1b",
       .weights = "",
       .interval = Row::kNoInterval,
       .of_few = Row::kOfFewWhereMemoryEnds},
      {.name = "straight", .strategy = "straight", .part = Row::kOfBest},
      {.name = "hybrid", .strategy = "hybrid", .part = Row::kOfBest},
      {.name = "best", .strategy = "best", .part = Row::kBest, .of_few = Row::kOfFew},
      {.name = "flush",
       .strategy = "best",
       .schedule = "1f1b-flush",
       .interval = Row::kLikeDataParallelism,
       .where_open = true},
      {.name = "interleaved",
       .strategy = "best",
       .schedule = "interleaved",
       .interval = Row::kLikeDataParallelism,
       .where_open = true},
      {.name = "zb-h1",
       .strategy = "best",
       .schedule = "zb-h1",
       .interval = Row::kLikeDataParallelism,
       .where_open = true,
       .of_few = Row::kOfFew},
      {.name = "2bw",
       .strategy = "best",
       .weights = "2bw",
       .interval = Row::kLikeDataParallelism,
       .where_open = true,
       .of_few = Row::kOfFew},
      {.name = "paci",
       .strategy = "best",
       .weights = "paci",
       .interval = Row::kNoInterval,
       .where_open = true},
      {.name = "predict",
       .strategy = "best",
       .weights = "predict",
       .interval = Row::kNoInterval,
       .where_open = true},
  };
  return rows;
}

Contender named(const Inputs& inputs, const ContenderRow& row) {
  Contender made;
  made.name = row.name;
  made.file = row.one_device
                  ? "gpus=1.json"
                  : "gpus=" + std::to_string(inputs.topology.device_count()) + "." + row.name + ".json";
  return made;
}

bool has_replicas(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return stage.ranks.size() > 1; });
}

}  // namespace

bool is_plain(const PlanRequest& request) {
  return schedule_facts(request.schedule).kind == ScheduleKind::k1F1B &&
         (request.weights.empty() || weight_rule_named(request.weights) == WeightRule::kStash);
}

Rows rows_for(const Inputs& inputs, bool few) {
  const bool open =
      is_plain(inputs.request) && inputs.request.microbatches == 0 && !inputs.request.use_all_devices;
  const bool memory_ends = inputs.topology.memory_bytes > 0 || !inputs.topology.devices.empty();
  Rows rows;
  for (const ContenderRow& row : contender_rows()) {
    const bool chosen = !few ? row.part != ContenderRow::kBest
                             : row.of_few == ContenderRow::kOfFew ||
                                   (row.of_few == ContenderRow::kOfFewWhereMemoryEnds && memory_ends);
    if (chosen && (open || !row.where_open)) rows.push_back(&row);
  }
  return rows;
}

Contender contender(const Inputs& inputs, const ContenderRow& row, int64_t minibatches, double most_seconds) {
  Contender made = named(inputs, row);
  Topology topology = inputs.topology;
  if (row.one_device) {
    for (TopologyLevel& level : topology.levels) level.count = 1;
    if (!topology.devices.empty()) topology.devices.resize(1);
  }
  PlanRequest request = inputs.request;
  request.strategy = row.strategy;
  request.most_seconds = most_seconds;
  if (row.schedule != nullptr) request.schedule = row.schedule;
  if (row.weights != nullptr) request.weights = row.weights;
  if (row.interval == ContenderRow::kNoInterval) request.microbatches = 0;
  if (row.interval == ContenderRow::kLikeDataParallelism) request.microbatches = minibatches;
  try {
    made.plan = make_plan(inputs.profile, topology, request, &made.notes);
  } catch (const InfeasibleError& error) {
    made.why_not = error.what();
    if (const auto* memory = dynamic_cast<const MemoryError*>(&error)) {
      made.lacks_memory = true;
      made.needed_bytes = memory->needed_bytes();
    }
  }
  return made;
}

Contender contender_of_weights(const Inputs& inputs, WeightRule weights) {
  ContenderRow row = {.name = to_text(weights), .strategy = inputs.request.strategy.c_str()};
  row.weights = row.name;
  if (facts_of(weights).one_update_for_all && inputs.request.microbatches == 0)
    row.interval = ContenderRow::kLikeDataParallelism;
  if (!facts_of(weights).one_update_for_all) row.interval = ContenderRow::kNoInterval;
  if (!schedule_facts(inputs.request.schedule).goes_with(weights))
    for (const ScheduleFacts& schedule : schedule_table())
      if (schedule.goes_with(weights) && schedule.depth == DepthChoice::kSearched)
        row.schedule = schedule.name;
  try {
    return contender(inputs, row, std::min(inputs.topology.device_count(), kMostInFlight));
  } catch (const InputError& error) {  // this rule does not go with what else is asked for
    Contender none = named(inputs, row);
    none.why_not = error.what();
    none.refused = true;
    return none;
  }
}

std::string kind_of(const Plan& plan) {
  if (plan.world_size == 1) return kOneDevice;
  if (plan.stages.size() == 1) return "data parallelism";
  if (schedule_facts(plan.schedule).kind == ScheduleKind::kModelParallel) return "model parallelism";
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.drains()) return "a pipeline that drains";
  if (rule.one_update_for_all) return "a pipeline with two versions of its weights";
  return has_replicas(plan) ? "a hybrid pipeline" : "a straight pipeline";
}

bool worth_more(const Contender& other, const Contender& best) {
  if (!other.plan) return false;
  if (!best.plan) return true;
  const bool newer = updates_of(*other.plan).staleness < updates_of(*best.plan).staleness;
  return seconds(other) < (newer ? 1 : kWorthwhile) * seconds(best);
}

std::optional<size_t> advised(const std::vector<Contender>& contenders) {
  size_t best = 0;
  for (size_t i = 1; i < contenders.size(); ++i)
    if (worth_more(contenders[i], contenders[best])) best = i;
  if (!contenders[best].plan) return std::nullopt;
  return best;
}

std::vector<Contender> contenders_for(const Inputs& inputs, int64_t minibatches) {
  const auto planned = [&](const ContenderRow& row) {
    return std::async(std::launch::async,
                      [&inputs, &row, minibatches] { return contender(inputs, row, minibatches); });
  };
  const Rows rows = rows_for(inputs, false);
  std::vector<std::future<Contender>> alone;  // by row; of those that `best` may settle, none yet
  for (const ContenderRow* row : rows)
    alone.push_back(row->part == ContenderRow::kOfBest ? std::future<Contender>() : planned(*row));
  std::optional<Plan> best;
  for (const ContenderRow& row : contender_rows())
    if (row.part == ContenderRow::kBest) best = contender(inputs, row, minibatches).plan;
  const auto solutions = [&](const ContenderRow& row) {
    return row.part == ContenderRow::kOfBest && best && best->stages.size() > 1 &&
           has_replicas(*best) == (searched_strategy(row.strategy).kind == StrategyKind::kHybrid);
  };
  for (size_t i = 0; i < rows.size(); ++i)
    if (!alone[i].valid() && !solutions(*rows[i])) alone[i] = planned(*rows[i]);
  std::vector<Contender> made;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (alone[i].valid()) {
      made.push_back(alone[i].get());
      continue;
    }
    made.push_back(named(inputs, *rows[i]));
    made.back().plan = best;
    made.back().plan->strategy = rows[i]->strategy;
  }
  return made;
}

}  // namespace pipewright

#include "runtime/schedule/torch_csv.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/synchronous_plan.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

struct TorchKind {
  const char* code;
  ActionKind kind;
};
constexpr std::array<TorchKind, 4> kTorchKinds = {{{"F", ActionKind::kForward},
                                                   {"B", ActionKind::kBackward},
                                                   {"I", ActionKind::kBackwardInput},
                                                   {"W", ActionKind::kBackwardWeight}}};
/// What follows from the rest.
constexpr std::array<const char*, 7> kAddedByTorch = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                      "UNSHARD", "RESHARD", "REDUCE_GRAD"};

/// By group of ranks, the number that its rank has in the pipeline: 0 for the least.
std::vector<size_t> places_of(const Plan& plan, size_t groups, size_t replica) {
  std::vector<size_t> order(groups), places(groups);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return plan.stages[a].ranks[replica] < plan.stages[b].ranks[replica];
  });
  for (size_t place = 0; place < groups; ++place) places[order[place]] = place;
  return places;
}

/// The cells of a line; a blank around them is none of theirs.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream words(line);
  for (std::string cell; std::getline(words, cell, ',');) {
    const size_t first = cell.find_first_not_of(" \t\r");
    cells.push_back(
        first == std::string::npos ? "" : cell.substr(first, cell.find_last_not_of(" \t\r") - first + 1));
  }
  return cells;
}

/// Adds the actions of a cell, one, two or none; false: it is none of the format's.
bool add_cell(const std::string& cell, std::vector<Action>* actions) {
  if (cell.empty()) return true;
  if (cell[0] == '(') {
    const size_t end = cell.find(')');
    if (end == std::string::npos || cell.substr(end) != ")OVERLAP_F_B") return false;
    std::istringstream parts(cell.substr(1, end - 1));
    for (std::string part; std::getline(parts, part, ';');)
      if (part.empty() || part[0] == '(' || !add_cell(part, actions)) return false;
    return true;
  }
  const auto number = [&](size_t begin, size_t end, int64_t* value) {
    const auto [read, error] = std::from_chars(cell.data() + begin, cell.data() + end, *value);
    return error == std::errc() && read == cell.data() + end && *value >= 0;
  };
  const size_t kind = std::min(cell.find_first_not_of("0123456789"), cell.size());
  const size_t digits = cell.find_last_not_of("0123456789") + 1;
  Action action;
  if (kind >= digits || !number(0, kind, &action.stage)) return false;
  const bool has_microbatch = digits < cell.size();
  if (has_microbatch && !number(digits, cell.size(), &action.index)) return false;
  const std::string code = cell.substr(kind, digits - kind);
  if (std::find(kAddedByTorch.begin(), kAddedByTorch.end(), code) != kAddedByTorch.end()) return true;
  const auto row = std::find_if(kTorchKinds.begin(), kTorchKinds.end(),
                                [&](const TorchKind& known) { return known.code == code; });
  if (row == kTorchKinds.end() || !has_microbatch) return false;
  action.kind = row->kind;
  actions->push_back(action);
  return true;
}

std::vector<std::vector<Action>> parse_rows(const std::string& text, const std::string& where) {
  std::vector<std::vector<Action>> rows;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::vector<std::string> cells = cells_of(line);
    std::vector<Action> actions;
    for (size_t i = 0; i < cells.size(); ++i) {
      const auto fail = [&](const std::string& expected) {
        throw InputError(where + ": line " + std::to_string(number) + ", cell " + std::to_string(i + 1) +
                             ": got '" + cells[i] + "', expected " + expected,
                         "A line has the actions of a rank, as PyTorch's _dump_csv writes them.");
      };
      if (!add_cell(cells[i], &actions))
        fail("STAGE, one of F B I W, and MICROBATCH, such as 0F3, or nothing");
      if (actions.empty()) continue;
      if (actions.back().index >= kMostInFlight) fail("microbatches 0.." + std::to_string(kMostInFlight - 1));
      if (actions.back().stage >= kMostRanks) fail("stages 0.." + std::to_string(kMostRanks - 1));
    }
    if (cells.empty()) continue;  // an empty line at the end
    if (actions.empty())
      throw InputError(where + ": line " + std::to_string(number) + ": a rank that computes nothing");
    rows.push_back(std::move(actions));
  }
  return rows;
}

/// The rank of each stage.
std::vector<int64_t> ranks_of_rows(const std::vector<std::vector<Action>>& rows, const std::string& where) {
  std::map<int64_t, int64_t> rank_of;
  for (size_t rank = 0; rank < rows.size(); ++rank)
    for (const Action& action : rows[rank]) {
      const int64_t other = rank_of.emplace(action.stage, rank).first->second;
      if (other != static_cast<int64_t>(rank))
        throw InputError(where + ": stage " + std::to_string(action.stage) + " is on lines " +
                         std::to_string(other + 1) + " and " + std::to_string(rank + 1) +
                         ", expected one rank for each stage");
    }
  std::vector<int64_t> ranks;
  for (const auto& [stage, rank] : rank_of) {
    if (stage != std::ssize(ranks))
      throw InputError(where + ": has stage " + std::to_string(stage) + " and no stage " +
                       std::to_string(ranks.size()) + ", expected stages 0, 1, ...");
    ranks.push_back(rank);
  }
  return ranks;
}

void check_placement(const PipelineShape& shape, const std::vector<int64_t>& ranks,
                     const std::string& where) {
  const std::set<int64_t> all(ranks.begin(), ranks.end());
  const bool even = std::ssize(ranks) % std::ssize(all) == 0;
  for (int64_t stage = 0; even && stage < shape.stages(); ++stage) {
    const int64_t like = shape.group_of(stage);
    if (ranks[static_cast<size_t>(stage)] == ranks[static_cast<size_t>(like)] &&
        (stage != like || std::find(ranks.begin(), ranks.begin() + stage,
                                    ranks[static_cast<size_t>(stage)]) == ranks.begin() + stage))
      continue;
    throw InputError(where + ": stage " + std::to_string(stage) + " is on line " +
                         std::to_string(ranks[static_cast<size_t>(stage)] + 1) + ", and stage " +
                         std::to_string(like) + " on line " +
                         std::to_string(ranks[static_cast<size_t>(like)] + 1),
                     "Of p ranks one has stages s, s + p, ..., or s and 2p - 1 - s.");
  }
  if (!even)
    throw InputError(where + ": " + std::to_string(ranks.size()) + " stages on " +
                         std::to_string(all.size()) + " ranks, expected a multiple",
                     "Every rank has the same number of stages.");
}

}  // namespace

std::string torch_csv_text(const Plan& plan) {
  const int64_t replicas = synchronous_replicas(plan, "PyTorch's schedule");
  if (!plan.tied_parameters.empty())
    throw PlanError("plan: PyTorch's schedule cannot hold parameter '" + plan.tied_parameters[0].name +
                        "', which is tied across stages",
                    "Put all nodes that read it into one stage: plan again with --pin.");
  check_plan_runs(plan);
  const PipelineShape shape = shape_of(plan);
  const auto groups = static_cast<size_t>(shape.groups());
  const std::vector<size_t> places = places_of(plan, groups, 0);
  for (size_t replica = 1; replica < static_cast<size_t>(replicas); ++replica)
    if (places_of(plan, groups, replica) != places)
      throw PlanError("plan: PyTorch's schedule cannot hold replica " + std::to_string(replica) +
                          ", whose ranks go through the stages in another order than those of replica 0",
                      "Give the replicas of each stage ranks that follow each other.");
  std::vector<std::string> lines(groups);
  for (size_t group = 0; group < groups; ++group) {
    std::string& line = lines[places[group]];
    const auto stage = static_cast<int64_t>(group);
    for (const Action& action :
         schedule_named(plan.schedule).make(shape, stage, 0, Span{0, shape.microbatches})) {
      const auto row = std::find_if(kTorchKinds.begin(), kTorchKinds.end(),
                                    [&](const TorchKind& known) { return known.kind == action.kind; });
      if (row == kTorchKinds.end()) continue;  // the update
      line += (line.empty() ? "" : ",") + std::to_string(action.stage_or(stage)) + row->code +
              std::to_string(action.index / replicas);
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

bool looks_like_torch_csv(const std::string& text) {
  const size_t first = text.find_first_not_of(", \t\r\n");
  if (first == std::string::npos) return false;
  const size_t number = first + (text[first] == '(' ? 1 : 0);
  const size_t kind = text.find_first_not_of("0123456789", number);
  return kind != std::string::npos && kind > number &&
         std::isupper(static_cast<unsigned char>(text[kind])) != 0;
}

Plan plan_of_torch_csv(const std::string& text, const std::string& where, const Plan& stages) {
  std::vector<std::vector<Action>> rows = parse_rows(text, where);
  if (rows.empty()) throw InputError(where + ": no ranks, expected a line for each");
  const std::vector<int64_t> ranks = ranks_of_rows(rows, where);
  if (ranks.size() != stages.stages.size())
    throw PlanError(
        where + ": a schedule of " + std::to_string(ranks.size()) + " stages; the plan has " +
            std::to_string(stages.stages.size()),
        "Plan as many: --strategy straight --max-stages, or --schedule interleaved where ranks have "
        "several.");
  if (stages.frozen_stages() > 0)
    throw PlanError(where + ": a schedule that trains every stage; the plan has frozen ones",
                    "Plan without --frozen-layers.");
  PipelineShape shape;
  shape.replicas.assign(ranks.size(), 1);
  shape.stages_per_rank = std::max<int64_t>(1, std::ssize(ranks) / std::ssize(rows));
  shape.v_shaped = shape.stages_per_rank == 2 && rows.size() > 1 && ranks.front() == ranks.back();
  check_placement(shape, ranks, where);

  Plan plan = stages;
  plan.strategy = "manual";
  plan.schedule = "custom";
  plan.weights = "flush";
  plan.microbatches = 0;
  plan.world_size = std::ssize(rows);
  plan.predicted.reset();
  plan.order.clear();
  for (size_t s = 0; s < ranks.size(); ++s) {
    plan.stages[s].ranks = {ranks[s]};
    plan.stages[s].in_flight = kMostInFlight;
    plan.stages[s].shares.clear();
    plan.stages[s].split.clear();
  }
  for (int64_t group = 0; group < shape.groups(); ++group) {
    std::vector<Action>& row = rows[static_cast<size_t>(ranks[static_cast<size_t>(group)])];
    for (Action& action : row) {
      plan.microbatches = std::max(plan.microbatches, action.index + 1);
      if (shape.stages_per_rank == 1) action.stage = Action::kOnlyStage;
    }
    plan.order.push_back(to_text(row));
  }
  plan.validate(where);
  check_schedule_shape(plan.schedule, shape_of(plan));
  plan = with_used_depths(std::move(plan));
  check_plan_runs(plan);
  return plan;
}

}  // namespace pipewright

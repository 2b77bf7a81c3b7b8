#include "optimizer/commands/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/strategies.h"
#include "graph/units.h"
#include "optimizer/commands/report.h"
#include "optimizer/cost/tied.h"

namespace pipewright {
namespace {

/// More devices for less than a percent are not worth having.
constexpr double kWorthwhile = 0.99;
constexpr double kFactor = 4;  // steps of bandwidth, three to each side
constexpr int kSteps = 3;
constexpr int kBisections = 4;  // 4^(1/16): a tenth
constexpr double kOnward = 1.09;
constexpr int kMostConfirmed = 4;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kSmallQuestion =
    400;  // nodes times devices: what is said of turns is asked with all of the effort
constexpr double kEffortOfTurns = 0.05;  // of the time for one row
constexpr double kEffortBetween = 0.01;  // hardly more than to price the plans that are known
/// A gain below this is told together with what it costs.
constexpr double kLittle = 1.1;
constexpr const char* kDataParallelism = "dp";  // the row that others are compared with

double seconds(const Contender& contender) { return contender.plan->predicted->minibatch_seconds; }

bool plain(const PlanRequest& request) {
  return schedule_facts(request.schedule).kind == ScheduleKind::k1F1B &&
         (request.weights.empty() || weight_rule_named(request.weights) == WeightRule::kStash);
}

/// A way to run the model that is compared with the others: what it changes in the question that was asked.
struct ContenderRow {
  const char* name;
  const char* strategy;
  const char* schedule = nullptr;  ///< null: as asked
  const char* weights = nullptr;   ///< null: as asked; "": the usual rule of the schedule
  enum { kAsAsked, kNoInterval, kLikeDataParallelism } interval = kAsAsked;
  bool one_device = false;
  /// There for a question that leaves schedule and rule open.
  bool where_open = false;
  /// Straight and hybrid pipelines are what `best` is about: it has more ways to an answer than either alone,
  /// and what it finds is the row's whose kind it is.
  enum { kAlone, kBest, kOfBest } part = kAlone;
  /// Of the few rows of which one is the best, or nearly: of those that drain zb-h1 hardly ever loses, and
  /// model parallelism is for want of memory alone.
  enum { kNotOfFew, kOfFew, kOfFewWhereMemoryEnds } of_few = kNotOfFew;
};
using Rows = std::vector<const ContenderRow*>;

/// In an order in which a later one must gain something.
const std::vector<ContenderRow>& contender_rows() {
  using Row = ContenderRow;
  static const std::vector<Row> rows = {
      {.name = "one device",
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
  };
  return rows;
}

/// Those that there are for the question.
Rows rows_for(const Inputs& inputs, bool few) {
  const bool open = plain(inputs.request) && inputs.request.microbatches == 0 &&
                    !inputs.request.use_all_devices && cost_model_named(inputs.request.objective).simulated;
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

Contender named(const Inputs& inputs, const ContenderRow& row) {
  Contender made;
  made.name = row.name;
  made.file = row.one_device
                  ? "gpus=1.json"
                  : "gpus=" + std::to_string(inputs.topology.device_count()) + "." + row.name + ".json";
  return made;
}

/// `minibatches`: of an update, where the schedule leaves that open. What takes more than `most_seconds` need
/// not be found.
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
    made.plan = make_plan(inputs.profile, topology, request);
  } catch (const InfeasibleError& error) {
    made.why_not = error.what();
    if (const auto* memory = dynamic_cast<const MemoryError*>(&error)) {
      made.lacks_memory = true;
      made.needed_bytes = memory->needed_bytes();
    }
  }
  return made;
}

bool has_replicas(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const Stage& stage) { return stage.ranks.size() > 1; });
}

std::string kind_of(const Plan& plan) {
  if (plan.world_size == 1) return "one device";
  if (plan.stages.size() == 1) return "data parallelism";
  if (schedule_facts(plan.schedule).kind == ScheduleKind::kModelParallel) return "model parallelism";
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.drains()) return "a pipeline that drains";
  if (rule.one_update_for_all) return "a pipeline with two versions of its weights";
  return has_replicas(plan) ? "a hybrid pipeline" : "a straight pipeline";
}

/// Whether it is to be taken over `best`, which stands before it in the rows. Newer weights are worth having
/// for nothing.
bool worth_more(const Contender& other, const Contender& best) {
  if (!other.plan) return false;
  if (!best.plan) return true;
  const bool newer = updates_of(*other.plan).staleness < updates_of(*best.plan).staleness;
  return seconds(other) < (newer ? 1 : kWorthwhile) * seconds(best);
}

/// The one to take; nothing if none fits.
std::optional<size_t> advised(const std::vector<Contender>& contenders) {
  size_t best = 0;
  for (size_t i = 1; i < contenders.size(); ++i)
    if (worth_more(contenders[i], contenders[best])) best = i;
  if (!contenders[best].plan) return std::nullopt;
  return best;
}

void add_if_new(const Plan& plan, std::vector<Plan>* known) {
  const auto same = [&](const Plan& other) {
    return std::equal(
        plan.stages.begin(), plan.stages.end(), other.stages.begin(), other.stages.end(),
        [](const Stage& a, const Stage& b) { return a.nodes == b.nodes && a.ranks == b.ranks; });
  };
  if (std::none_of(known->begin(), known->end(), same)) known->push_back(plan);
}

/// All rows, in their order.
std::vector<Contender> contenders_for(const Inputs& inputs, int64_t minibatches) {
  std::optional<Plan> best;
  for (const ContenderRow& row : contender_rows())
    if (row.part == ContenderRow::kBest) best = contender(inputs, row, minibatches, kNever).plan;
  std::vector<Contender> made;
  for (const ContenderRow* row : rows_for(inputs, false)) {
    const bool is_best =
        row->part == ContenderRow::kOfBest && best && best->stages.size() > 1 &&
        has_replicas(*best) == (searched_strategy(row->strategy).kind == StrategyKind::kHybrid);
    if (is_best) {
      made.push_back(named(inputs, *row));
      made.back().plan = best;
      made.back().plan->strategy = row->strategy;
    } else {
      made.push_back(contender(inputs, *row, minibatches, kNever));
    }
  }
  return made;
}

struct Winner {
  std::string kind;
  std::string shape;
};

/// What the same rows, or a few that stand for them, would advise with all links faster or slower. Nothing if
/// nothing fits, or at no bandwidth that there is. With little effort it begins with the plans that are
/// known, and adds its own to them.
std::optional<Winner> winner_at(const Inputs& inputs, int64_t minibatches, double factor, double effort,
                                const Rows& rows, std::vector<Plan>* known) {
  Inputs other = inputs;
  other.request.effort = effort * inputs.request.effort;
  const std::vector<Plan> begin = *known;
  other.request.known = &begin;
  for (TopologyLevel& level : other.topology.levels) {
    level.bandwidth_bytes_per_second *= factor;
    if (level.bandwidth_bytes_per_second > 1e18) return std::nullopt;
  }
  Contender best;
  const auto take = [&best](Contender next) {
    if (worth_more(next, best)) best = std::move(next);
  };
  if (other.request.effort >= 1) {  // as compare() asks, or it would not advise the same there
    for (Contender& next : contenders_for(other, minibatches)) take(std::move(next));
  } else {
    for (const ContenderRow* row : rows)
      take(contender(other, *row, minibatches, best.plan ? seconds(best) : kNever));
  }
  if (!best.plan) return std::nullopt;
  const Plan& plan = *best.plan;
  add_if_new(plan, known);
  return Winner{kind_of(plan), plan.shape_text()};
}

/// Two digits of it, away from where the question is.
double rounded_outward(double bits_per_second, bool below) {
  const double unit = std::pow(10, std::floor(std::log10(bits_per_second)) - 1);
  const double digits = bits_per_second / unit;
  return unit * (below ? std::floor(digits + 1e-9) : std::ceil(digits - 1e-9));
}

/// The nearest turn to one side. The planner itself is asked in steps, with less effort and for few rows, and
/// between two steps again and again for which of the plans that are known by then are faster; what is said
/// is then asked of all rows at just the bandwidth that is printed, small questions with all of the effort.
std::optional<Turn> turn(const Inputs& inputs, int64_t minibatches, const std::string& now, bool below,
                         std::vector<Plan>* known) {
  const double innermost = inputs.topology.levels[0].bandwidth_bytes_per_second;
  const auto size = static_cast<int64_t>(inputs.profile.nodes.size()) * inputs.topology.device_count();
  const double effort = size <= kSmallQuestion ? 1 : kEffortOfTurns;
  const Rows all = rows_for(inputs, false), few = rows_for(inputs, true);
  double near = 1;
  for (int step = 0; step < kSteps; ++step) {
    double far = below ? near / kFactor : near * kFactor;
    const std::optional<Winner> other = winner_at(inputs, minibatches, far, kEffortOfTurns, few, known);
    if (!other) return std::nullopt;
    if (other->kind == now) {
      near = far;
      continue;
    }
    for (int i = 0; i < kBisections; ++i) {
      const double middle = std::sqrt(near * far);
      const std::optional<Winner> found = winner_at(inputs, minibatches, middle, kEffortBetween, few, known);
      if (!found) return std::nullopt;
      (found->kind == now ? near : far) = middle;
    }
    for (int i = 0; i < kMostConfirmed; ++i) {
      const double rate = rounded_outward(8 * innermost * far, below) / 8;
      const std::optional<Winner> found =
          winner_at(inputs, minibatches, rate / innermost, effort, all, known);
      if (!found) return std::nullopt;
      if (found->kind != now) return Turn{rate, below, found->kind, found->shape};
      far *= below ? 1 / kOnward : kOnward;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

std::string times_text(double ratio, const std::string& than) {
  if (ratio < kLittle) return number_text(100 * (ratio - 1)) + " % faster than " + than;
  return number_text(ratio) + " times as fast as " + than;
}

/// `ratio`: of one device's time to the plan's. Where one device is as fast, it is for want of memory that it
/// is not the plan.
std::string against_one_device(double ratio) {
  if (ratio > 1) return times_text(ratio, "one device");
  return "the fastest that fits; one device with memory enough would be as fast";
}

/// What a small gain costs: older weights than another way reads, or more samples an update. "" if it costs
/// nothing, or is none that is small.
std::string cost_of_gain(const Comparison& comparison, const Inputs& inputs) {
  const Contender& best = comparison.contenders[comparison.best];
  const Updates mine = updates_of(*best.plan);
  const Contender* fresh = nullptr;  // the fastest whose weights are never stale
  const Contender* small = nullptr;  // the fastest of smaller updates, its weights no older
  for (const Contender& each : comparison.contenders) {
    if (!each.plan || &each == &best || seconds(each) >= kLittle * seconds(best)) continue;
    const Updates other = updates_of(*each.plan);
    if (mine.staleness > 0 && other.staleness == 0 && (fresh == nullptr || seconds(each) < seconds(*fresh)))
      fresh = &each;
    const bool smaller = other.staleness <= mine.staleness && other.most_minibatches < mine.most_minibatches;
    if (smaller && (small == nullptr || seconds(each) < seconds(*small))) small = &each;
  }
  const auto longer = [&](const Contender& other) {
    return number_text(std::max(0.0, 100 * (seconds(other) / seconds(best) - 1))) + " % longer";
  };
  if (fresh != nullptr) {
    return " It trains on weights that are up to " + std::to_string(mine.staleness) +
           (mine.staleness == 1 ? " update" : " updates") + " old; " + fresh->name + " does not and takes " +
           longer(*fresh) + ".";
  }
  if (small == nullptr) return "";
  const int64_t samples = inputs.profile.minibatch_samples;
  const auto update = [&](const Updates& updates) {
    return std::to_string(updates.most_minibatches * std::max<int64_t>(1, samples));
  };
  return " Its updates are of " + update(mine) + (samples > 0 ? " samples; " : " minibatches; ") +
         small->name + " makes one of " + update(updates_of(*small->plan)) + " and takes " + longer(*small) +
         ".";
}

std::string advice_for(const Comparison& comparison, const Inputs& inputs) {
  const Contender& best = comparison.contenders[comparison.best];
  const Plan& plan = *best.plan;
  const Contender* parallel = nullptr;
  for (const Contender& each : comparison.contenders)
    if (each.plan && each.name == kDataParallelism) parallel = &each;
  std::string text = "Take " + best.name + " (" + shape_and_recompute_text(plan) + "): ";
  if (plan.world_size == 1 && comparison.devices > 1) {
    text += "distributing gains nothing here, more devices only wait for each other";
  } else if (plan.world_size == 1) {
    text += "there is one device";
  } else if (plan.stages.size() == 1) {
    text += "the exchange of gradients costs less than any pipeline's unequal stages or transfers";
  } else if (parallel == nullptr) {
    text += "the fastest that fits " + format_bytes(static_cast<double>(inputs.topology.memory_bytes)) +
            " a device; data parallelism does not";
  } else {
    const std::string& bottleneck = parallel->plan->predicted->bottleneck;
    const std::string bound = ", which is bound by " + bottleneck.substr(bottleneck.find(':') + 2);
    const double alone = comparison.one_device_seconds;
    // Many times as fast as what is slower than one device says nothing.
    if (seconds(*parallel) < alone) {
      text += times_text(seconds(*parallel) / seconds(best), "data parallelism") + bound;
    } else {
      text += against_one_device(alone / seconds(best)) + "; data parallelism" + bound +
              ", is slower than one device";
    }
  }
  text += ". It is bound by " + plan.predicted->bottleneck + ".";
  text += cost_of_gain(comparison, inputs);
  for (const Turn& each : comparison.turns) text += " " + turn_text(each) + ".";
  if (plan.world_size == 1 && comparison.turns_sought &&
      std::none_of(comparison.turns.begin(), comparison.turns.end(),
                   [](const Turn& t) { return !t.below; })) {
    text += " That does not change up to 64 times the bandwidth.";
  }
  return text;
}

std::string ties_of_rows(const Profile& profile) {
  const std::string text = forbidden_cuts_text(profile);
  return text.empty() ? "" : "straight, hybrid: " + text + ", as in the rows that drain and in 2bw.";
}

}  // namespace

std::string turn_text(const Turn& turn) {
  // Two digits, which all of it are.
  const double gigabits = turn.bytes_per_second * 8e-9;
  char rate[64];
  if (gigabits >= 10)
    std::snprintf(rate, sizeof rate, "%.0f Gbit/s", gigabits);
  else if (gigabits >= 0.01)
    std::snprintf(rate, sizeof rate, "%.2g Gbit/s", gigabits);
  else
    std::snprintf(rate, sizeof rate, "%.2g Mbit/s", gigabits * 1e3);
  return std::string(turn.below ? "Below " : "Above ") + rate + " " + turn.kind + " wins (" + turn.shape +
         ")";
}

double one_device_seconds(const Inputs& inputs) {
  Inputs one = inputs;
  one.topology = flat_topology(1, inputs.topology.levels[0].bandwidth_bytes_per_second, 0, 0);
  one.request.strategy = "dp";
  one.request.demands = {};
  one.request.schedule = "1f1b";
  one.request.weights.clear();
  one.request.microbatches = 0;
  one.request.recompute = "never";
  one.request.class_profiles.clear();
  return make_plan(one.profile, one.topology, one.request).predicted->minibatch_seconds;
}

Updates updates_of(const Plan& plan) {
  Updates updates;
  const WeightRuleFacts& rule = weight_rule_facts(plan.weights);
  if (rule.one_update_for_all) {
    updates.least_minibatches = updates.most_minibatches = plan.microbatches;
    updates.staleness = rule.drains() ? 0 : 1;
    return updates;
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    auto round = static_cast<int64_t>(stage.ranks.size());
    if (stage.splits()) round = 1;
    if (!stage.shares.empty()) round = std::accumulate(stage.shares.begin(), stage.shares.end(), int64_t{0});
    updates.least_minibatches = s == 0 ? round : std::min(updates.least_minibatches, round);
    updates.most_minibatches = std::max(updates.most_minibatches, round);
    // Minibatches in flight were read with the weights before theirs.
    const int64_t depth = rule.lag == WeightLag::kFirstStage ? plan.stages[0].in_flight : stage.in_flight;
    if (schedule_facts(plan.schedule).kind != ScheduleKind::kModelParallel)
      updates.staleness = std::max(updates.staleness, depth - 1);
  }
  return updates;
}

Comparison compare(const Inputs& inputs, int64_t samples_per_update) {
  Comparison comparison;
  comparison.model = inputs.profile.model;
  comparison.devices = inputs.topology.device_count();
  comparison.one_device_seconds = one_device_seconds(inputs);
  int64_t minibatches = std::min(comparison.devices, kMostInFlight);
  if (samples_per_update > 0) {
    const int64_t samples = std::max<int64_t>(1, inputs.profile.minibatch_samples);
    minibatches = std::clamp<int64_t>((samples_per_update + samples / 2) / samples, 1, kMostInFlight);
  }
  comparison.contenders = contenders_for(inputs, minibatches);
  const std::optional<size_t> best = advised(comparison.contenders);
  if (!best) {
    // What needs least is nearest.
    const Contender* nearest = &comparison.contenders.front();
    for (const Contender& each : comparison.contenders) {
      const bool less = nearest->needed_bytes == 0 || each.needed_bytes < nearest->needed_bytes;
      if (each.needed_bytes > 0 && less) nearest = &each;
    }
    throw InfeasibleError("no strategy fits; nearest is " + nearest->name + ": " + nearest->why_not,
                          "Give more memory, more devices, or a profile with a smaller minibatch.");
  }
  comparison.best = *best;
  if (plain(inputs.request) && comparison.devices > 1) {
    comparison.turns_sought = true;
    const std::string now = kind_of(*comparison.contenders[comparison.best].plan);
    std::vector<Plan> known;
    for (const Contender& each : comparison.contenders)
      if (each.plan) add_if_new(*each.plan, &known);
    for (const bool below : {true, false}) {
      if (const std::optional<Turn> found = turn(inputs, minibatches, now, below, &known))
        comparison.turns.push_back(*found);
    }
  }
  comparison.advice = advice_for(comparison, inputs);
  if (comparison.devices > 1 && plain(inputs.request)) comparison.ties = ties_of_rows(inputs.profile);
  return comparison;
}

namespace {

std::string update_text(const Updates& updates, int64_t minibatch_samples) {
  const int64_t each = std::max<int64_t>(1, minibatch_samples);
  std::string text = std::to_string(updates.least_minibatches * each);
  if (updates.most_minibatches > updates.least_minibatches)
    text += "-" + std::to_string(updates.most_minibatches * each);
  return minibatch_samples > 0 ? text : text + (text == "1" ? " minibatch" : " minibatches");
}

}  // namespace

TextTable comparison_table(const Comparison& comparison, const Inputs& inputs) {
  constexpr auto kLeft = TableColumn::Side::kLeft;
  constexpr auto kRight = TableColumn::Side::kRight;
  TextTable table({{"strategy", kLeft},
                   {"stages", kLeft, 0, 12},
                   {"ranks", kRight, 4},
                   {"minibatch"},
                   {"speed-up", kRight, 1},
                   {"samples/s", kRight, 5},
                   {"samples/update", kRight, 4},
                   {"staleness", kRight, 3},
                   {"memory", kRight, 2},
                   {"bound by", kLeft, 0, 16}});
  for (const Contender& each : comparison.contenders) {
    if (!each.plan) {
      table.add({each.name, "-", "-", "-", "-", "-", "-", "-", "-",
                 each.lacks_memory ? "does not fit" : "not possible"});
      continue;
    }
    const Prediction& predicted = *each.plan->predicted;
    const Updates updates = updates_of(*each.plan);
    table.add({each.name, shape_and_recompute_text(*each.plan), std::to_string(each.plan->world_size),
               format_seconds(predicted.minibatch_seconds),
               number_text(comparison.one_device_seconds / predicted.minibatch_seconds) + "x",
               inputs.profile.minibatch_samples > 0 ? number_text(predicted.samples_per_second) : "-",
               update_text(updates, inputs.profile.minibatch_samples), std::to_string(updates.staleness),
               format_bytes(static_cast<double>(largest_memory(predicted))), predicted.bottleneck});
  }
  return table;
}

Json comparison_json(const Comparison& comparison) {
  Json json;
  json["model"] = comparison.model;
  json["strategies"] = Json::array();
  for (const Contender& each : comparison.contenders) {
    Json row;
    row["strategy"] = each.name;
    if (each.plan) {
      const Prediction& predicted = *each.plan->predicted;
      row["shape"] = each.plan->shape_text();
      row["world_size"] = each.plan->world_size;
      row["recompute"] = Json::array();
      for (const Stage& stage : each.plan->stages) row["recompute"].push_back(stage.recompute);
      row["minibatch_seconds"] = predicted.minibatch_seconds;
      const Updates updates = updates_of(*each.plan);
      row["minibatches_per_update"] = updates.most_minibatches;
      row["staleness"] = updates.staleness;
      row["speed_up"] = comparison.one_device_seconds / predicted.minibatch_seconds;
      row["memory_bytes"] = largest_memory(predicted);
      row["bottleneck"] = predicted.bottleneck;
    } else {
      row["why_not"] = each.why_not;
    }
    json["strategies"].push_back(row);
  }
  json["best"] = comparison.contenders[comparison.best].name;
  json["kind"] = kind_of(*comparison.contenders[comparison.best].plan);
  json["turns"] = Json::array();
  for (const Turn& each : comparison.turns) {
    json["turns"].push_back({{"bandwidth_bytes_per_second", each.bytes_per_second},
                             {"side", each.below ? "below" : "above"},
                             {"kind", each.kind},
                             {"shape", each.shape}});
  }
  json["advice"] = comparison.advice;
  if (!comparison.ties.empty()) json["tied_parameters"] = comparison.ties;
  return json;
}

}  // namespace pipewright

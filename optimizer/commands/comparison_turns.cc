#include "optimizer/commands/comparison_turns.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>

#include "graph/json.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/plan/faster_links.h"

namespace pipewright {
namespace {

constexpr double kFactor = 4;  // steps of bandwidth, three to each side
constexpr int kSteps = 3;
constexpr int kBisections = 4;  // 4^(1/16): a tenth
constexpr double kOnward = 1.09;
constexpr int kMostConfirmed = 4;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kSmallProblem =
    400;  // nodes times devices: what is said of turns is asked with all of the effort
constexpr double kEffortOfTurns = 0.05;  // of the time for one row
constexpr double kEffortBetween = 0.01;  // hardly more than to price the plans that are known

void add_if_new(const Plan& plan, std::vector<Plan>* known) {
  const auto same = [&](const Plan& other) {
    return std::equal(
        plan.stages.begin(), plan.stages.end(), other.stages.begin(), other.stages.end(),
        [](const Stage& a, const Stage& b) { return a.nodes == b.nodes && a.ranks == b.ranks; });
  };
  if (std::none_of(known->begin(), known->end(), same)) known->push_back(plan);
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
  const std::optional<Topology> links = with_faster_links(inputs.topology, factor);
  if (!links) return std::nullopt;
  other.topology = *links;
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

/// Two digits of it, away from where the problem is.
double rounded_outward(double bits_per_second, bool below) {
  const double unit = std::pow(10, std::floor(std::log10(bits_per_second)) - 1);
  const double digits = bits_per_second / unit;
  return unit * (below ? std::floor(digits + 1e-9) : std::ceil(digits - 1e-9));
}

/// Two members or more: nothing passes the others.
std::vector<TopologyLevel> levels_passed(const Topology& topology) {
  std::vector<TopologyLevel> levels;
  for (const TopologyLevel& level : topology.levels)
    if (level.count > 1) levels.push_back(level);
  return levels.empty() ? std::vector<TopologyLevel>{topology.levels.front()} : levels;
}

Turn turn_at(double factor, const std::vector<TopologyLevel>& levels, bool below, const Winner& winner) {
  Turn turn;
  turn.below = below;
  turn.kind = winner.kind;
  turn.shape = winner.shape;
  turn.of_two = levels.size() == 2;
  turn.group = levels.size() > 1 ? 1 : 0;
  for (const TopologyLevel& level : levels) {
    turn.bytes_per_second.push_back(level.bandwidth_bytes_per_second * factor);
    if (&level != &levels.back()) turn.group *= level.count;
  }
  return turn;
}

/// The nearest turn to one side. The planner itself is asked in steps, with less effort and for few rows, and
/// between two steps again and again for which of the plans that are known by then are faster; what is said
/// is then asked of all rows at just the bandwidth that is printed, small problems with all of the effort.
std::optional<Turn> turn(const Inputs& inputs, int64_t minibatches, const std::string& now, bool below,
                         std::vector<Plan>* known) {
  const std::vector<TopologyLevel> levels = levels_passed(inputs.topology);
  const double outermost = levels.back().bandwidth_bytes_per_second;
  const auto size = static_cast<int64_t>(inputs.profile.nodes.size()) * inputs.topology.device_count();
  const double effort = size <= kSmallProblem ? 1 : kEffortOfTurns;
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
      const double factor = rounded_outward(8 * outermost * far, below) / 8 / outermost;
      const std::optional<Winner> found = winner_at(inputs, minibatches, factor, effort, all, known);
      if (!found) return std::nullopt;
      if (found->kind != now) return turn_at(factor, levels, below, *found);
      far *= below ? 1 / kOnward : kOnward;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Turn> turns_of(const Inputs& inputs, int64_t minibatches,
                           const std::vector<Contender>& contenders, const std::string& now) {
  std::vector<Plan> known;
  for (const Contender& each : contenders)
    if (each.plan) add_if_new(*each.plan, &known);
  // Each side learns plans of its own, so that what it finds does not hang on who is faster.
  const auto side = [&](bool below) {
    std::vector<Plan> own = known;
    return turn(inputs, minibatches, now, below, &own);
  };
  std::future<std::optional<Turn>> above = std::async(std::launch::async, side, false);
  std::vector<Turn> turns;
  const std::optional<Turn> nearest_below = side(true);
  for (const std::optional<Turn>& found : {nearest_below, above.get()})
    if (found) turns.push_back(*found);
  return turns;
}

namespace {

/// Two digits, or whole gigabits.
std::string rate_text(double bytes_per_second) {
  const double gigabits = bytes_per_second * 8e-9;
  char rate[64];
  if (gigabits >= 10)
    std::snprintf(rate, sizeof rate, "%.0f Gbit/s", gigabits);
  else if (gigabits >= 0.01)
    std::snprintf(rate, sizeof rate, "%.2g Gbit/s", gigabits);
  else
    std::snprintf(rate, sizeof rate, "%.2g Mbit/s", gigabits * 1e3);
  return rate;
}

}  // namespace

std::string turn_text(const Turn& turn) {
  std::string text = (turn.below ? "Below " : "Above ") + rate_text(turn.bytes_per_second.back());
  if (turn.group > 0) {
    std::vector<std::string> inner;
    for (size_t i = 0; i + 1 < turn.bytes_per_second.size(); ++i)
      inner.push_back(rate_text(turn.bytes_per_second[i]));
    text += " between " + (turn.of_two ? "hosts" : "groups of " + std::to_string(turn.group) + " devices") +
            ", with " + join(inner, ", ") + " within them,";
  }
  return text + " " + turn.kind + " wins (" + turn.shape + ")";
}

}  // namespace pipewright

#include "optimizer/commands/comparison_turns.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"
#include "optimizer/commands/comparison_rows.h"
#include "optimizer/plan/evaluate.h"
#include "optimizer/plan/faster_links.h"

namespace pipewright {
namespace {

constexpr double kReach = 64;       // times the bandwidth, or as much less
constexpr int64_t kGrid = 45;       // steps of bandwidth: 1, 5.5, 10, 55, ... bit/s, wherever is asked from
constexpr int64_t kTwoDigits = 90;  // numbers of two digits in a decade
constexpr int kMostConfirmed = 5;
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
  Plan plan;
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
  return Winner{kind_of(plan), plan};
}

/// The bandwidths that are said, in bits per second: numbers of two digits, in their order. They are the same
/// wherever is asked from, and so are the turns that are found among them.
double said_bits(int64_t i) {
  const int64_t decade = i >= 0 ? i / kTwoDigits : -((-i + kTwoDigits - 1) / kTwoDigits);
  return static_cast<double>(10 + i - decade * kTwoDigits) * std::pow(10, static_cast<double>(decade));
}

/// The nearest one that is lower (`below`), or higher, than `bits_per_second`.
int64_t said_beyond(double bits_per_second, bool below) {
  const auto decade = static_cast<int64_t>(std::floor(std::log10(bits_per_second))) - 1;
  const double digits = bits_per_second / std::pow(10, static_cast<double>(decade));
  const int64_t first = decade * kTwoDigits - 10;
  return first + static_cast<int64_t>(below ? std::ceil(digits - 1e-9) - 1 : std::floor(digits + 1e-9) + 1);
}

/// Two members or more: nothing passes the others.
std::vector<TopologyLevel> levels_passed(const Topology& topology) {
  std::vector<TopologyLevel> levels;
  for (const TopologyLevel& level : topology.levels)
    if (level.count > 1) levels.push_back(level);
  return levels.empty() ? std::vector<TopologyLevel>{topology.levels.front()} : levels;
}

Turn turn_at(double factor, const std::vector<TopologyLevel>& levels, bool below, const Winner& winner,
             double gain) {
  Turn turn;
  turn.below = below;
  turn.kind = winner.kind;
  turn.shape = winner.plan.shape_text();
  turn.gain = gain;
  turn.of_two = levels.size() == 2;
  turn.group = levels.size() > 1 ? 1 : 0;
  for (const TopologyLevel& level : levels) {
    turn.bytes_per_second.push_back(level.bandwidth_bytes_per_second * factor);
    if (&level != &levels.back()) turn.group *= level.count;
  }
  return turn;
}

/// How much less the winner takes than all of the plans `others`, as a part: the most from the turn on, up to
/// four times as far.
double gain_from(const Inputs& inputs, double factor, bool below, const Plan& winner,
                 const std::vector<Plan>& others) {
  double gain = 0;
  for (const double further : {1.0, 2.0, 4.0}) {
    const std::optional<Topology> links =
        with_faster_links(inputs.topology, below ? factor / further : factor * further);
    if (!links) continue;
    const auto price = [&](const Plan& plan) {
      try {
        return evaluate_plan(plan, inputs.profile, *links, inputs.request).minibatch_seconds;
      } catch (const Error&) {  // with these links it does not run
        return kNever;
      }
    };
    double least = kNever;
    for (const Plan& other : others) least = std::min(least, price(other));
    if (least < kNever) gain = std::max(gain, 1 - price(winner) / least);
  }
  return gain;
}

/// The nearest turn to one side, among said_bits(). The planner itself is asked in steps, with less effort
/// and for few rows, and between two steps again and again for which of the plans that are known by then are
/// faster; what is said is then asked of all rows at just the bandwidth that is printed, of small problems
/// with all of the effort and at the one before it, too.
class TurnSearch {
 public:
  TurnSearch(const Inputs& inputs, int64_t minibatches, const std::vector<Contender>& contenders,
             const std::string& now, bool below)
      : inputs_(inputs),
        minibatches_(minibatches),
        now_(now),
        below_(below),
        levels_(levels_passed(inputs.topology)),
        outermost_bits_(8 * levels_.back().bandwidth_bytes_per_second),
        start_(said_beyond(outermost_bits_, below)),
        all_(rows_for(inputs, false)),
        few_(rows_for(inputs, true)) {
    const auto size = static_cast<int64_t>(inputs.profile.nodes.size()) * inputs.topology.device_count();
    effort_ = size <= kSmallProblem ? 1 : kEffortOfTurns;
    for (const Contender& each : contenders) {
      if (!each.plan) continue;
      add_if_new(*each.plan, &known_);
      if (kind_of(*each.plan) == now) add_of_now(*each.plan);
    }
  }

  std::optional<Turn> nearest() {
    const int64_t end = said_beyond(below_ ? outermost_bits_ / kReach : outermost_bits_ * kReach, !below_);
    // As a step before the first, whose other side is where the problem is.
    int64_t near = grid_before(start_);
    while (beyond(end, near)) {
      int64_t far = near + way() * kGrid;
      if (beyond(far, end)) far = end;
      const std::optional<bool> other = turned(far, kEffortOfTurns, few_);
      if (!other) return std::nullopt;
      if (*other) return between(near, far);
      near = far;
    }
    return std::nullopt;
  }

 private:
  int64_t way() const { return below_ ? -1 : 1; }
  /// Whether a is further away from where the problem is.
  bool beyond(int64_t a, int64_t b) const { return way() * (a - b) > 0; }
  int64_t grid_before(int64_t i) const {
    const int64_t rest = ((i % kGrid) + kGrid) % kGrid;
    const int64_t lower = i - rest;
    return below_ ? lower + kGrid : (rest == 0 ? lower - kGrid : lower);
  }
  /// Only those that one has asked about last: each is priced again.
  void add_of_now(const Plan& plan) {
    constexpr size_t kMost = 6;
    std::erase_if(of_now_, [&](const Plan& other) {
      return other.schedule == plan.schedule && other.weights == plan.weights &&
             std::equal(
                 plan.stages.begin(), plan.stages.end(), other.stages.begin(), other.stages.end(),
                 [](const Stage& a, const Stage& b) { return a.nodes == b.nodes && a.ranks == b.ranks; });
    });
    of_now_.push_back(plan);
    if (of_now_.size() > kMost) of_now_.erase(of_now_.begin());
  }
  double factor_at(int64_t i) const { return said_bits(i) / outermost_bits_; }

  std::optional<Winner> ask(int64_t i, double effort, const Rows& rows) {
    return winner_at(inputs_, minibatches_, factor_at(i), effort, rows, &known_);
  }
  /// Whether another kind is advised there; nothing where none is.
  std::optional<bool> turned(int64_t i, double effort, const Rows& rows) {
    if (beyond(start_, i)) return false;
    const std::optional<Winner> winner = ask(i, effort, rows);
    if (!winner) return std::nullopt;
    if (winner->kind == now_) add_of_now(winner->plan);
    return winner->kind != now_;
  }

  std::optional<Turn> between(int64_t near, int64_t far) {
    while (std::abs(far - near) > 1) {
      const int64_t middle = (near + far) / 2;
      const std::optional<bool> other = turned(middle, kEffortBetween, few_);
      if (!other) return std::nullopt;
      (*other ? far : near) = middle;
    }
    constexpr int64_t kBack = 4;
    int64_t step = 1;
    for (int i = 0; i < kMostConfirmed; ++i, step *= 2) {
      std::optional<Winner> winner = ask(far, effort_, all_);
      if (!winner) return std::nullopt;
      if (winner->kind != now_) return settled(far, std::max(kBack, step / 2), std::move(*winner));
      add_of_now(winner->plan);
      far += way() * step;
    }
    return std::nullopt;
  }

  /// From `far` back, `most` at most, to behind the last one where what was there before is advised.
  Turn settled(int64_t far, int64_t most, Winner winner) {
    if (effort_ < 1) most = 0;  // with less it is not exact anyway
    for (int64_t i = 0; i < most && far != start_; ++i) {
      std::optional<Winner> before = ask(far - way(), effort_, all_);
      if (!before) break;
      if (before->kind == now_) {
        add_of_now(before->plan);
        break;
      }
      far -= way();
      winner = std::move(*before);
    }
    return turn_at(factor_at(far), levels_, below_, winner,
                   gain_from(inputs_, factor_at(far), below_, winner.plan, of_now_));
  }

  const Inputs& inputs_;
  const int64_t minibatches_;
  const std::string& now_;
  const bool below_;
  const std::vector<TopologyLevel> levels_;
  const double outermost_bits_;
  const int64_t start_;  ///< the first beyond where the problem is
  const Rows all_, few_;
  double effort_ = 1;
  /// Each side learns plans of its own, so that what it finds does not hang on who is faster.
  std::vector<Plan> known_;
  std::vector<Plan> of_now_;  ///< of the kind that is advised where the problem is
};

}  // namespace

std::vector<Turn> turns_of(const Inputs& inputs, int64_t minibatches,
                           const std::vector<Contender>& contenders, const std::string& now) {
  const auto side = [&](bool below) {
    return TurnSearch(inputs, minibatches, contenders, now, below).nearest();
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
  const std::string shape = " (" + turn.shape + ")";
  if (turn.gain < 1 - kWorthwhile) return text + " " + turn.kind + shape + " is about equal, within 1 %";
  return text + " " + turn.kind + " wins" + shape;
}

}  // namespace pipewright

#include "optimizer/search/search_levels.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "optimizer/cost/levels.h"
#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/search/few_cuts.h"
#include "optimizer/search/placed_table.h"
#include "optimizer/search/search_stage.h"

namespace pipewright::search_detail {
namespace {

/// Where not all placements are looked at, the last digits of the period say nothing.
constexpr double kLimitedProof = 1e-3;
constexpr double kFirstStep = 1e-3;
// What a first plan is searched among, and how well.
constexpr int kFewCuts = 48;
constexpr int kNear = 5;
constexpr double kFewProof = 2e-3;

/// A period that no plan has, from `low` on, as near to what cannot be refuted without placing stages as
/// refuting one more is worth.
double refuted_period(PlacedTable* table, double low, int64_t devices) {
  double step = 0.01;
  while (low > 0 && step < 1e9 && !table->possible(low * (1 + step), devices)) {
    low *= 1 + step;
    step *= 2;
  }
  for (double high = low * (1 + step); low > 0 && high > low * (1 + kLimitedProof);) {
    const double middle = low + (high - low) / 2;
    (table->possible(middle, devices) ? high : low) = middle;
  }
  return low;
}

/// The cuts of the plan and those on both sides of them.
std::vector<int> around(const Answer& answer, int states) {
  std::set<int> numbers = {0, states - 1};
  for (const FoundStage& stage : answer.stages) {
    for (int i = std::max(0, stage.to - kNear); i <= std::min(states - 1, stage.to + kNear); ++i)
      numbers.insert(i);
  }
  return {numbers.begin(), numbers.end()};
}

/// Between a period that no plan has and one that was achieved.
class PeriodSearch {
 public:
  PeriodSearch(const Question& q, const StagePlaces& places, bool reversed)
      : q_(q), table_(q, places, reversed) {}

  bool limited() const { return table_.limited(); }
  /// Nothing if no plan is faster than `known`, if that is given, or if there is none at all.
  std::optional<Answer> least(const std::optional<Answer>& known, double proof) {
    low_ = table_.least_period();
    if (known) high_ = known->period_seconds;
    if (table_.limited()) {
      proof = std::max(proof, kLimitedProof);
      low_ = refuted_period(&table_, low_, q_.devices);
    }
    const double refuted = low_;
    if (!known && !any(refuted)) return std::nullopt;
    // What is known is nearly the best, mostly.
    const double least_step = proof / 2;  // so that one failure is enough, rounded as it may be
    for (double step = least_step; high_ - low_ > proof * high_;) {
      const bool nearer = tried(std::max(high_ * (1 - step), low_ + (high_ - low_) / 2));
      step = nearer ? std::max(kFirstStep, 4 * step) : least_step;
    }
    bound_ = table_.limited() ? refuted : std::min(low_, high_) * (1 - kTolerance);
    return std::move(best_);
  }
  /// After that: no plan is faster.
  double bound() const { return bound_; }
  /// A plan as fast on fewer devices.
  std::optional<Answer> fewer(const Answer& best) {
    const int64_t most = table_.limited() ? q_.devices : best.devices - 1;
    std::optional<Answer> found = table_.within(best.period_seconds * (1 + kTolerance), most);
    if (found && found->period_seconds > best.period_seconds * (1 + 2 * kTolerance)) return std::nullopt;
    return found;
  }

 private:
  bool tried(double period) {
    std::optional<Answer> found = table_.within(period, q_.devices);
    if (!found) {
      low_ = period;
      return false;
    }
    PW_CHECK(found->period_seconds <= period * (1 + kTolerance), "a placement costs what the search says");
    high_ = std::min(high_, found->period_seconds);
    best_ = std::move(found);
    return true;
  }
  /// From below: many placements are within a long period, and few within a short one.
  bool any(double from) {
    for (double step = 0.01; from > 0 && step < 1e9; step *= 2) {
      if (tried(from * (1 + step))) return true;
    }
    return tried(kNoLimit);
  }

  const Question& q_;
  PlacedTable table_;
  std::optional<Answer> best_;
  double low_ = 0;
  double high_ = kNoLimit;
  double bound_ = 0;
};

/// With a plan along some of the cuts to begin with.
std::optional<Answer> least_period_on_levels(const Question& q, const StagePlaces& places, double proof,
                                             bool reversed) {
  std::optional<Answer> best;
  const auto try_some = [&](const std::vector<int>& numbers) {
    const States states = some_of(*q.states, numbers);
    Question few = q;
    few.states = &states;
    const StagePlaces few_places = places.among(numbers);
    std::optional<Answer> found = PeriodSearch(few, few_places, reversed).least(best, kFewProof);
    if (!found) return;
    for (FoundStage& stage : found->stages) {
      stage.from = numbers[stage.from];
      stage.to = numbers[stage.to];
    }
    best = std::move(found);
  };
  PeriodSearch all(q, places, reversed);
  if (q.states->size() > 2 * kFewCuts && !all.limited()) {
    try_some(thinned(*q.states, kFewCuts));
    if (best) try_some(around(*best, q.states->size()));
  }
  if (std::optional<Answer> found = all.least(best, proof)) best = std::move(found);
  if (!best) return best;
  if (std::optional<Answer> fewer = all.fewer(*best)) best = std::move(fewer);
  best->bound_seconds = all.bound();
  return best;
}

/// Devices that differ may be used in the other order too, all of them.
bool has_other_order(const Question& q) {
  if (q.devices_in_order || !q.inputs.devices_differ()) return false;
  return q.devices == static_cast<int64_t>(q.inputs.speeds.size());
}

std::optional<Answer> all_in_one_stage(const Question& q) {
  StageLoad load = load_of(q, 0, q.states->last());
  load.workspace = workspace_between(*q.states, 0, q.states->last());
  Stage stage;
  stage.ranks.resize(q.devices);
  std::iota(stage.ranks.begin(), stage.ranks.end(), 0);
  const int64_t memory = memory_limit_bytes(q.inputs, q.memory_bytes, stage.ranks);
  const auto recompute = recompute_to_fit(q, load, q.devices, 0, memory);
  if (!recompute) return std::nullopt;
  load.recompute = *recompute;
  if (!q.inputs.speeds.empty()) {
    std::vector<double> seconds;
    for (int64_t d = 0; d < q.devices; ++d) seconds.push_back(compute_seconds_on(load, q.inputs, d));
    stage.shares = best_shares(seconds, q.inputs.most_minibatches_of_round);
  }
  Answer answer;
  answer.stages = {{0, q.states->last(), q.devices, stage.ranks, stage.shares, *recompute}};
  answer.devices = q.devices;
  answer.period_seconds = price_placed({load}, {stage}, q.inputs).total_seconds();
  answer.bound_seconds = answer.period_seconds * (1 - kTolerance);
  return answer;
}

}  // namespace

std::optional<Answer> search_placed(const Question& q) {
  if (q.single_stage) return all_in_one_stage(q);
  return search_placed(q, StagePlaces(*q.states, {}, {}, 0), kPlacedProof);
}

std::optional<Answer> search_placed(const Question& q, const StagePlaces& places, double proof) {
  std::optional<Answer> best = least_period_on_levels(q, places, proof, false);
  if (!has_other_order(q)) return best;
  std::optional<Answer> other = least_period_on_levels(q, places, proof, true);
  if (!best) return other;
  if (!other) return best;
  const double bound = std::min(best->bound_seconds, other->bound_seconds);
  if (other->period_seconds < best->period_seconds * (1 - kTolerance)) best = std::move(other);
  best->bound_seconds = bound;
  return best;
}

std::optional<InferenceAnswer> search_placed_inference(const Question& question, double period_seconds) {
  Question q = question;
  q.inputs.forward_only = true;
  q.recompute = Recompute::kNever;
  const StagePlaces places(*q.states, {}, {}, 0);
  std::optional<InferenceAnswer> best;
  for (const bool reversed : {false, true}) {
    if (reversed && !has_other_order(q)) break;
    PlacedTable table(q, places, reversed);
    std::optional<Answer> found = table.within(period_seconds * (1 + kTolerance), q.devices);
    if (!found || (best && best->latency_seconds <= table.latency_seconds() * (1 + kTolerance))) continue;
    best = InferenceAnswer{std::move(*found), table.latency_seconds()};
  }
  return best;
}

}  // namespace pipewright::search_detail

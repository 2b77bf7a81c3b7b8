#include "optimizer/plan/pool.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "graph/strategies.h"
#include "optimizer/plan/moves.h"
#include "optimizer/plan/pool_choice.h"
#include "optimizer/plan/pool_seeds.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/search/thin_stages.h"
#include "runtime/schedule/deepening.h"

namespace pipewright {
namespace {

constexpr double kUnpriced = std::numeric_limits<double>::infinity();
constexpr double kGain = 1e-4;       // less is no gain
constexpr double kStep = 2e-3;       // a gain that is worth moving on from at once
constexpr double kNearBound = 2e-3;  // of the bound: then no more is looked for
constexpr size_t kStarts = 3;        // of local moves, at a time
constexpr int kMostStarts = 64;
constexpr double kBeside = 1.5;
constexpr double kIdle = 1e-2;  // of what a device has to do
constexpr size_t kKept = 32;
// What is so near the fastest, and so many of these, are priced with all depths in the end.
constexpr double kSettledWithin = 1.03;
constexpr size_t kSettled = 1, kSettledOfFew = 8;
constexpr double kReconsiderable = 1.7;   // of the best: deeper pipelines gain no more
constexpr int64_t kReconsidered = 60000;  // minibatches of stages
constexpr int64_t kFloorSpent = 8;        // what a floor costs, in minibatches of stages
// It is over once so many times as much was spent as the last gain took.
constexpr double kPatience = 4;
constexpr double kLeastSpent = 40000;
constexpr int64_t kMostSpent = 800000;    // minibatches of stages
constexpr int64_t kMostDrained = 200000;  // the same where pipelines drain: one way to train of several

/// The bound knows nothing of what ranks of one host take from each other, which is about the same for all of
/// them (replicas in step take more), nor of what calibration found for all kinds of plans.
double near_bound(const Question& q) {
  const double crowd = q.inputs.crowd && q.devices > 1 ? q.inputs.crowd->compute_factor : 1;
  return crowd * q.inputs.factors.least() + kNearBound;
}

class Pool {
 public:
  Pool(const Question& question, const PlanRequest& request, double bound, double most)
      : q_(question),
        pricer_(question, request),
        bound_(bound),
        most_(most),
        effort_(request.effort),
        known_(begins_with_known(request)),
        drains_(drains(request)),
        most_spent_(drains_ ? kMostDrained : kMostSpent),
        depth_by_devices_(searched_strategy(request.strategy).kind == StrategyKind::kBest &&
                          question.places == nullptr &&
                          schedule_facts(request.schedule).depth == DepthChoice::kAsTheFirst) {}

  void seed(const std::vector<Answer>& found) {
    few_ = every_shape(q_, kUnpriced).has_value();
    add_shapes(single_stages(q_));  // their floors are their prices
    drain();
    slack_ = 1 + 3 * kGain;  // as fast on fewer devices is of interest too
    for (const Answer& answer : found) add_answer(answer);
    drain();
    slack_ = 1;
    if (done()) return;
    if (const auto every = every_shape(q_, best())) {
      add_shapes(*every);
    } else {
      add_shapes(even_shapes(q_));
      // These know of no demands; plans that drain begin with one for each number of stages.
      if (q_.places == nullptr && !drains_) {
        if (effort_ >= 1)
          for (const Answer& answer : careful_seeds(q_, best())) add_answer(answer);
        for (const Answer& answer : searched_seeds(q_, known_)) add_answer(answer);
      }
    }
    drain();
  }

  void improve() {
    moving_ = true;
    for (int in_vain = 0; in_vain < kMostStarts && !done();) {
      const std::optional<Candidate> start = next_start();
      if (!start) return;
      add_neighbours(*start);
      const double before = best();
      drain();
      if (best() > before * (1 - kStep)) ++in_vain;
    }
  }

  /// Prices what was given up early, nearest first, with all depths: now that nothing better is known there
  /// is some time for what the measured gains leave out.
  void reconsider() {
    if (!pricer_.placed()) return;
    const double before = best();
    const int64_t begin = pricer_.spent();
    for (const auto& [rough, candidate] : given_up_) {
      if (done() || pricer_.spent() > begin + kReconsidered || rough > kReconsiderable * best()) break;
      if (const auto price = pricer_.price(candidate, 0, kUnpriced))
        if (price->seconds < best() * (1 - kGain)) keep({candidate, price->depths, price->seconds});
    }
    given_up_.clear();
    if (best() < before * (1 - kStep)) improve();
  }

  std::optional<PoolAnswer> answer() {
    if (priced_.empty() || priced_[0].seconds > most_) return std::nullopt;
    PoolAnswer chosen = chosen_of(priced_, q_, &pricer_);
    if (effort_ < 1) {
      chosen.capped = capped_;
      return chosen;
    }
    const double near = kSettledWithin * chosen.seconds;
    // With the depths that only few plans have the time for, and those taken back that are not needed.
    settle(&chosen, kDepthTolerance);
    size_t others = few_ ? kSettledOfFew : kSettled;
    for (PoolAnswer other : priced_) {
      if (others == 0 || other.seconds > near) break;
      if (other.candidate.key(q_.inputs.levels) == chosen.candidate.key(q_.inputs.levels) ||
          has_thin_stage(other.candidate.stages, q_))
        continue;
      --others;
      settle(&other, 1);
      if (other.seconds < (1 - kStep) * chosen.seconds) chosen = std::move(other);
    }
    chosen.capped = capped_;
    return chosen;
  }

 private:
  void settle(PoolAnswer* answer, double tolerance) {
    const auto settled = pricer_.price(answer->candidate, 0, kUnpriced);
    if (!settled || settled->seconds >= answer->seconds * tolerance) return;
    answer->seconds = settled->seconds;
    answer->depths = settled->depths;
  }

  double best() const { return priced_.empty() ? most_ : std::min(most_, priced_[0].seconds); }
  bool done() {
    if (best() <= bound_ * near_bound(q_)) return true;
    const auto spent = static_cast<double>(spent_ + pricer_.spent());
    if (spent > kPatience * std::max<double>(kLeastSpent, gained_at_)) return true;
    if (spent < effort_ * static_cast<double>(most_spent_)) return false;
    capped_ = true;
    return true;
  }

  /// Of the fastest the first that has not been one; then by floor, whatever lies near: the way to a faster
  /// plan may lead over plans that are none.
  std::optional<Candidate> next_start() {
    for (size_t rank = 0; rank < std::min(kStarts, priced_.size()); ++rank) {
      const Candidate& candidate = priced_[rank].candidate;
      if (started_.insert(candidate.key(q_.inputs.levels)).second) return candidate;
    }
    while (!beside_.empty()) {
      const auto first = beside_.begin();
      if (first->first > kBeside * best()) return std::nullopt;
      const Candidate candidate = std::move(first->second);
      beside_.erase(first);
      if (started_.insert(candidate.key(q_.inputs.levels)).second) return candidate;
    }
    return std::nullopt;
  }

  // --- candidates that wait, by what is likely ---

  void add(Candidate candidate) {
    candidate.room = Room::kPaced;
    if (!candidate.allowed_by(q_) || (depth_by_devices_ && has_idle_stage(candidate.stages))) return;
    if (!seen_.insert(candidate.key(q_.inputs.levels)).second) return;
    const double seconds = best() < kUnpriced ? best() : std::max(bound_, 1e-300);
    std::set<std::vector<bool>> known;  // which stages recompute
    for (const auto room : kRooms) {
      candidate.room = room;
      const NetworkPace pace = pricer_.pace(&candidate, seconds);
      std::vector<bool> recompute;
      for (const FoundStage& stage : candidate.stages) recompute.push_back(stage.recompute);
      if (known.insert(recompute).second) {
        wait(candidate, pace);
        if (few_) add_recomputing_otherwise(candidate);
      }
      if (q_.memory_bytes == 0 || q_.recompute != Recompute::kWhereNeeded) return;
    }
  }

  /// The same with one stage that recomputes or no longer does: what its depth gains, or its time, the
  /// rooms above know of each stage alone.
  void add_recomputing_otherwise(const Candidate& from) {
    if (q_.memory_bytes == 0 || q_.recompute != Recompute::kWhereNeeded) return;
    for (size_t s = 0; s < from.stages.size(); ++s) {
      Candidate other = from;
      other.room.reset();
      other.stages[s].recompute = !other.stages[s].recompute;
      if (!seen_.insert(other.key(q_.inputs.levels)).second) continue;
      const NetworkPace pace = pricer_.pace(&other, best());
      wait(std::move(other), pace);
    }
  }

  /// A stage of next to no work is there for the depth that its devices give all others.
  bool has_idle_stage(const std::vector<FoundStage>& stages) const {
    const States& states = *q_.states;
    const double little = kIdle * work_before(states, states.last()) / static_cast<double>(q_.devices);
    return stages.size() > 1 && std::any_of(stages.begin(), stages.end(), [&](const FoundStage& stage) {
             return work_before(states, stage.to) - work_before(states, stage.from) < little;
           });
  }

  void wait(Candidate candidate, const NetworkPace& pace) {
    spent_ += kFloorSpent;
    if (pace.floor_seconds < best() * (1 - kGain) * slack_) {
      waiting_.emplace(pace.likely_seconds, Waiting{std::move(candidate), pace.floor_seconds});
    } else if (pace.likely_seconds < kBeside * best()) {
      keep_near(&beside_, pace.likely_seconds, candidate);
    }
  }

  void add_shapes(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes)
      for (Candidate& candidate : in_every_layout(q_, shape)) add(std::move(candidate));
  }

  void add_neighbours(const Candidate& from) {
    add_recomputing_otherwise(from);
    for (const Shape& shape : neighbours(q_, shape_of(from.stages))) {
      const std::vector<Candidate> everywhere = in_every_layout(q_, shape);
      if (everywhere.empty()) continue;
      if (pricer_.placed()) add({everywhere.front().placed_on(dealt_out(from.ranks(), shape.replicas))});
      for (const Candidate& candidate : everywhere) add(candidate);
    }
    if (!pricer_.placed()) return;
    for (const Ranks& ranks : swapped(from.ranks(), q_.inputs.levels)) add({from.placed_on(ranks)});
  }

  void add_answer(const Answer& answer) {
    const bool placed = std::none_of(answer.stages.begin(), answer.stages.end(),
                                     [](const FoundStage& stage) { return stage.ranks.empty(); });
    if (placed == pricer_.placed()) add({Chain{answer.stages}});
    add_shapes({shape_of(answer.stages)});
  }

  /// Simulates what waits, nearest first. True if nothing better can be.
  bool drain() {
    while (!waiting_.empty()) {
      if (slack_ <= 1 && done()) break;
      const auto next = waiting_.begin();
      const double floor = next->second.floor;
      const Candidate candidate = std::move(next->second.candidate);
      waiting_.erase(next);
      const double limit = best() * (1 - kGain) * slack_;
      if (floor >= limit) continue;
      const double before = best();
      if (const auto price = pricer_.price(candidate, floor, limit)) {
        keep({candidate, price->depths, price->seconds});
        if (price->seconds > limit) keep_near(&given_up_, price->seconds, candidate);
      }
      if (moving_ && best() < before * (1 - kStep)) return false;  // on from there; the rest waits
    }
    waiting_.clear();
    return best() <= bound_ * near_bound(q_);
  }

  static void keep_near(std::multimap<double, Candidate>* kept, double seconds, const Candidate& candidate) {
    kept->emplace(seconds, candidate);
    if (kept->size() > kKept) kept->erase(std::prev(kept->end()));
  }

  void keep(PoolAnswer priced) {
    const auto at = std::upper_bound(priced_.begin(), priced_.end(), priced.seconds,
                                     [](double s, const PoolAnswer& p) { return s < p.seconds; });
    if (priced.seconds < best() * (1 - kStep)) gained_at_ = static_cast<double>(spent_ + pricer_.spent());
    priced_.insert(at, std::move(priced));
    if (priced_.size() > kKept) priced_.pop_back();
  }

  const Question& q_;
  Pricer pricer_;
  double bound_;
  double most_;  // what is slower is of no interest
  double effort_;
  bool known_;  // plans to begin with
  bool drains_;
  int64_t most_spent_;
  bool depth_by_devices_;  // of all stages, by how many there are behind the first
  int64_t spent_ = 0;
  double gained_at_ = 0;  // what was spent by the last gain that counts
  bool capped_ = false;
  bool moving_ = false;
  bool few_ = false;  // shapes, which are all tried
  double slack_ = 1;  // how much slower than the best is still of interest
  std::set<std::vector<int64_t>> seen_, started_;
  struct Waiting {
    Candidate candidate;
    double floor = 0;
  };
  std::multimap<double, Waiting> waiting_;     // by what is likely
  std::multimap<double, Candidate> beside_;    // likewise: not better, but near
  std::multimap<double, Candidate> given_up_;  // by what they were found to take by then
  std::vector<PoolAnswer> priced_;             // fastest first
};

}  // namespace

std::optional<PoolAnswer> best_as_simulated(const Question& question, const PlanRequest& request,
                                            const std::vector<Answer>& found, double bound_seconds) {
  const auto run = [&](const Question& q, const std::vector<Answer>& begin, double most) {
    Pool pool(q, request, bound_seconds, most);
    pool.seed(begin);
    pool.improve();
    pool.reconsider();
    return pool.answer();
  };
  std::optional<PoolAnswer> best = run(question, found, request.most_seconds);
  const bool near = best && best->seconds <= bound_seconds * near_bound(question);
  if (!best || near || question.least_stages > 1 || best->candidate.stages.size() > 1) return best;
  // A single stage that is far ahead of all pipelines known hides the way to better ones.
  Question pipelines = question;
  pipelines.least_stages = 2;
  pipelines.replicated = question.most_replicas > 1 && question.devices > 2;
  if (question.devices < 2 || question.all_devices) return best;
  const std::optional<Answer> begin = request.effort < 1 ? near_answer_to(pipelines) : search(pipelines);
  if (!begin) return best;
  // From nothing: what is slower than the single stage leads to what is faster.
  std::optional<PoolAnswer> other = run(pipelines, {*begin}, kUnpriced);
  if (other && other->seconds < best->seconds * (1 - kGain)) {
    other->capped = other->capped || best->capped;
    best = std::move(other);
  }
  return best;
}

}  // namespace pipewright

#include "optimizer/plan/solve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

#include "graph/strategies.h"
#include "optimizer/plan/evaluator.h"
#include "optimizer/plan/layouts.h"
#include "optimizer/plan/neighbours.h"
#include "optimizer/plan/row_seeds.h"
#include "optimizer/plan/run_rules.h"
#include "optimizer/plan/seeds.h"
#include "runtime/schedule/deepening.h"

namespace pipewright {
namespace {

constexpr double kGain = 1e-4;       // less is no gain
constexpr double kStep = 2e-3;       // a gain that is worth moving on from at once
constexpr double kNearBound = 2e-3;  // of the bound: then no more is looked for
constexpr double kBeside = 1.5;      // of the best: from what is slower moves do not begin
constexpr double kBinds = 1.02;      // a stage that takes all but so little of the best sets the pace
constexpr double kIdle = 1e-2;       // of what a device has to do
constexpr size_t kStarts = 3;        // of the fastest, before those of other kinds
constexpr size_t kKept = 256, kKeptOfKind = 64;
// In how many chains the neighbours of a start, and then all others, are priced in vain before moves begin
// elsewhere. With 24 to 100 and 24 to 48, 8 to 12 of 30 problems that were hard for other searches had slower
// plans than these found.
constexpr int kVainBeside = 64, kVain = 24;
// So many of the likeliest are priced before moves begin: with none planning again moved from a plan that is
// slow now, with kVain moves came too late (both: 2 of 90 drawn problems twice as slow).
constexpr int kLikeliestSeeds = 3;
// What a kind of chains comes later for each that was priced in vain, and that moves began from.
constexpr double kVainSlower = 0.005, kStartSlower = 0.03;
// Chains of as many stages that are likely to take as long, up to so little, are priced in vain so often. (Of
// the 30 without this 12 had slower plans, with it 8.)
constexpr double kAlike = 1e-3;
constexpr int kVainAlike = 6;
// On a network what is so near the best, and further above its floor than that, is priced again at more
// depths.
constexpr double kNearBest = 1.08, kAboveFloor = 1.02;
// Of the fastest, which are so near, so many are priced at all depths in the end.
constexpr size_t kSettled = 4;
constexpr double kSettledWithin = 1.06;
// Steps (counted_work.h), measured: of a floor, for each stage of it, of a minibatch of a stage simulated.
constexpr double kFloorSteps = 200, kFloorStageSteps = 75, kEventSteps = 120;
constexpr double kRowsPart = 0.4;  // of all the steps, at the most, for rows at the beginning
constexpr double kPricePart =
    0.25;  // of those that are left, for one price: rounds of uneven shares are long
// It is over once so many times as much was spent as the last gain took. With 4 and an eighth three of 97
// drawn problems had plans that were slower by 6 to 177 %.
constexpr double kPatience = 8, kLeastSteps = 5e6;

/// The bound knows nothing of what calibration found for all kinds of plans.
double near_bound(const Problem& q) {
  const bool crowded = q.inputs.crowd && q.devices > 1 && !q.inputs.devices_differ();
  return (crowded ? q.inputs.crowd->compute_factor : 1) * q.inputs.factors.least() + kNearBound;
}

/// Equal for chains that run alike: devices that no price tells apart may change places.
std::vector<int64_t> key_of(const Chain& chain, const Problem& q, const std::vector<int64_t>& kinds) {
  std::vector<int64_t> key;
  key.reserve(4 * chain.stages.size() + static_cast<size_t>(chain.devices()));
  for (const FoundStage& stage : chain.stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
    key.push_back(recomputed(stage));
  }
  if (!q.inputs.devices_differ()) {
    if (q.inputs.placed())
      for (const std::vector<int64_t>& stage : in_order_met(chain.ranks(), q.inputs.levels))
        key.insert(key.end(), stage.begin(), stage.end());
    return key;
  }
  const bool alike_anywhere = q.inputs.levels.size() < 2;
  for (const FoundStage& stage : chain.stages) {
    const auto begin = static_cast<std::ptrdiff_t>(key.size());
    for (const int64_t rank : stage.ranks)
      key.push_back(alike_anywhere ? kinds[static_cast<size_t>(rank)] : rank);
    std::sort(key.begin() + begin, key.end());
  }
  return key;
}

bool idle_come_last(const Chain& chain) {
  const int64_t used = chain.devices();
  return std::all_of(chain.stages.begin(), chain.stages.end(), [&](const FoundStage& stage) {
    return std::all_of(stage.ranks.begin(), stage.ranks.end(), [&](int64_t rank) { return rank < used; });
  });
}

class Search {
 public:
  Search(const Problem& problem, const PlanRequest& request, double bound)
      : q_(problem),
        fewer_(problem),
        evaluator_(problem, request),
        bound_(bound),
        most_(request.most_seconds),
        effort_(request.effort),
        recompute_is_a_choice_(problem.memory_bytes > 0 && problem.recompute == Recompute::kWhereNeeded),
        kinds_(kinds_of(problem.inputs, problem.devices)),
        depth_by_devices_(schedule_facts(request.schedule).depth == DepthChoice::kAsTheFirst &&
                          searched_strategy(request.strategy).kind == StrategyKind::kBest &&
                          problem.places == nullptr && !problem.inputs.devices_differ()),
        most_steps_(request.effort * kFullEffortSteps) {
    fewer_.all_devices = false;
  }

  void seed(const std::vector<Solution>& known) {
    few_ = every_shape(q_, kInfeasible).has_value();
    add_shapes(single_stages(q_));  // their floors are their prices
    price_waiting();
    for (const Solution& solution : known) add_solution(solution);
    price_waiting();
    if (done()) return;
    const auto every = every_shape(q_, best());
    add_shapes(every ? *every : even_shapes(q_));
    CountedWork rows(kRowsPart * most_steps_ / CountedWork::kStepsPerSecond);
    const double given = rows.left();
    std::vector<Chain> seeds = row_seeds(q_, known, &rows);
    spent_ += rows_steps_ = given - rows.left();
    for (Chain& chain : seeds) {
      add_several_times(shape_of(chain.stages));
      if (q_.inputs.placed()) add(std::move(chain));
    }
  }

  /// The likeliest of all that waits are priced; a gain is moved from at once, after some in vain moves begin
  /// elsewhere. Of what they lead to the likeliest are priced first.
  void improve() {
    int in_vain = kVain - kLikeliestSeeds;
    gained_ = false;
    while (!done()) {
      if (gained_ || nothing_waits() || in_vain >= kVain) {
        in_vain = 0;
        gained_ = false;
        leave_start();
        const std::optional<Chain> start = next_start();
        if (start) add_neighbours(*start);
        if (!start && !price_next() && !price_left_out()) return;
      } else if (!near_start_.empty()) {
        const Waiting next = std::move(near_start_.begin()->second);
        near_start_.erase(near_start_.begin());
        if (price(next) && ++vain_near_start_ == kVainBeside) leave_start();
      } else {
        price_next();
        ++in_vain;
      }
    }
  }

  SolvedChains result() {
    if (priced_.empty() || priced_[0].seconds > most_) return {};
    if (effort_ >= 1) settle();
    // Further devices for less than that are not worth having, nor is recomputing.
    const auto frugal = [](const SolvedChain& each) {
      return std::pair(each.chain.devices(), std::count_if(each.chain.stages.begin(), each.chain.stages.end(),
                                                           [](const FoundStage& s) { return s.recompute; }));
    };
    auto chosen = priced_.begin();
    for (auto each = priced_.begin(); each != priced_.end(); ++each) {
      if (each->seconds * (1 - kGain) > priced_[0].seconds) break;
      if (frugal(*each) < frugal(*chosen)) chosen = each;
    }
    std::rotate(priced_.begin(), chosen, chosen + 1);
    std::multimap<double, const Chain*> alike;
    const auto add = [&](double likely, const Chain& chain) {
      if (likely <= kEquallyFast * best() && chain.allowed_by(q_)) alike.emplace(likely, &chain);
    };
    for (const auto& [likely, waiting] : near_start_) add(likely, waiting.chain);
    for (const auto& [kind, queue] : waiting_)
      for (const auto& [likely, waiting] : queue) add(likely, waiting.chain);
    for (const auto& [kind, queue] : beside_)
      for (const auto& [likely, chain] : queue) add(likely, chain);
    SolvedChains result{std::move(priced_), capped_};
    for (const auto& [likely, chain] : alike) result.alike.push_back(*chain);
    return result;
  }

 private:
  /// What has not been priced of a start's neighbours waits with all others.
  void leave_start() {
    for (auto& [likely, waiting] : near_start_) {
      const Kind kind = kind_of(waiting.chain);
      waiting_[kind].emplace(likely, std::move(waiting));
    }
    near_start_.clear();
    vain_near_start_ = 0;
  }

  /// With the depths that only few chains have the time for, and those taken back that are not needed.
  void settle() {
    const double near = priced_[0].seconds * kSettledWithin;
    for (size_t i = 0; i < std::min(kSettled, priced_.size()) && priced_[i].seconds <= near; ++i) {
      const auto settled = evaluator_.price(priced_[i].chain, 0, kInfeasible);
      if (!settled || settled->seconds >= priced_[i].seconds * kDepthTolerance) continue;
      priced_[i].seconds = settled->seconds;
      priced_[i].depths = settled->depths;
    }
    std::stable_sort(priced_.begin(), priced_.end(),
                     [](const SolvedChain& a, const SolvedChain& b) { return a.seconds < b.seconds; });
  }

  struct Waiting {
    Chain chain;
    double floor = 0;
    double likely = 0;
    bool again = false;  // then `likely` is what it took at the depths that comparing has the time for
  };

  double spent() const { return spent_ + kEventSteps * static_cast<double>(evaluator_.spent()); }  // steps
  double best() const { return priced_.empty() ? most_ : std::min(most_, priced_[0].seconds); }
  bool done() {
    if (best() <= bound_ * near_bound(q_)) return true;
    if (spent() - rows_steps_ > kPatience * std::max(kLeastSteps, gained_at_)) return true;
    capped_ = spent() >= most_spent();
    return capped_;
  }
  double most_spent() const { return rows_steps_ + (1 - kRowsPart) * most_steps_; }

  bool started(const Chain& chain) const { return started_.count(hash_of(key_of(chain, q_, kinds_))) > 0; }

  /// Chains that are alike enough for the fastest to stand for the others: by number of stages, roughly where
  /// these are many, and whether any has replicas.
  using Kind = std::pair<size_t, bool>;
  static Kind kind_of(const Chain& chain) {
    const bool replicated = std::any_of(chain.stages.begin(), chain.stages.end(),
                                        [](const FoundStage& stage) { return stage.replicas > 1; });
    const size_t n = chain.stages.size();
    return {n < 5 ? n : n < 7 ? 5 : n < 10 ? 7 : n < 14 ? 10 : 14, replicated};
  }

  /// Of the fastest the first that has not been one; then the likeliest of a kind, priced or not, that is
  /// near the best, of kinds from whose chains moves have begun less often rather: the way to a faster plan
  /// may lead over plans that are none.
  std::optional<Chain> next_start() {
    for (size_t rank = 0; rank < std::min(kStarts, priced_.size()); ++rank)
      if (!started(priced_[rank].chain)) return start(priced_[rank].chain);
    struct Leader {
      double seconds = kInfeasible;
      const Chain* chain = nullptr;
    };
    std::map<Kind, Leader> leaders;
    for (const SolvedChain& each : priced_) {
      if (each.seconds > kBeside * best()) break;
      Leader& leader = leaders[kind_of(each.chain)];
      if (leader.chain == nullptr && !started(each.chain)) leader = {each.seconds, &each.chain};
    }
    for (auto& [kind, chains] : beside_) {
      while (!chains.empty() && started(chains.begin()->second)) chains.erase(chains.begin());
      if (chains.empty()) continue;
      const double seconds = chains.begin()->first * slower(kind);
      if (seconds > kBeside * best()) continue;
      Leader& leader = leaders[kind];
      if (seconds < leader.seconds) leader = {seconds, &chains.begin()->second};
    }
    const Leader* next = nullptr;
    double first = 0;
    for (const auto& [kind, leader] : leaders) {
      if (leader.chain == nullptr) continue;
      const double order = leader.seconds * (1 + kStartSlower * static_cast<double>(starts_[kind]));
      if (next != nullptr && order >= first) continue;
      next = &leader;
      first = order;
    }
    if (next == nullptr) return std::nullopt;
    return start(*next->chain);
  }

  bool nothing_waits() const {
    return again_.empty() && near_start_.empty() &&
           std::all_of(waiting_.begin(), waiting_.end(),
                       [](const auto& kind) { return kind.second.empty(); });
  }
  double slower(const Kind& kind) const {
    const auto known = in_vain_.find(kind);
    return known == in_vain_.end() ? 1 : 1 + kVainSlower * known->second;
  }

  Chain start(const Chain& from) {
    Chain chain = from;
    ++starts_[kind_of(chain)];
    started_.insert(hash_of(key_of(chain, q_, kinds_)));
    return chain;
  }

  // --- chains that wait, by what is likely ---

  void add(Chain chain) {
    if (!idle_come_last(chain) || (depth_by_devices_ && has_idle_stage(chain))) return;
    if (!chain.allowed_by(q_)) return add_start(std::move(chain));
    spent_ += q_.memory_bytes > 0 ? floor_steps(chain) : kFloorSteps;
    for (const Chain& way : evaluator_.recomputing(std::move(chain))) {
      wait(way);
      if (few_) add_recomputing_otherwise(way);
    }
  }

  /// A stage of next to no work is there for the depth that its devices give all others.
  bool has_idle_stage(const Chain& chain) const {
    const States& states = *q_.states;
    const double little = kIdle * work_before(states, states.last()) / static_cast<double>(q_.devices);
    return chain.stages.size() > 1 &&
           std::any_of(chain.stages.begin(), chain.stages.end(), [&](const FoundStage& stage) {
             return work_before(states, stage.to) - work_before(states, stage.from) < little;
           });
  }

  /// Where all devices are to be used, one of fewer is no result, but moves lead on from it.
  void add_start(Chain chain) {
    if (!q_.all_devices || !chain.allowed_by(fewer_)) return;
    std::vector<Chain> ways = evaluator_.recomputing(std::move(chain));
    if (ways.empty()) return;
    chain = std::move(ways.front());
    if (!seen_.insert(hash_of(key_of(chain, q_, kinds_))).second) return;
    const double seconds = evaluator_.floor(&chain).floor_seconds;
    keep_beside(seconds, std::move(chain));
  }

  void keep_beside(double seconds, Chain chain) {
    std::multimap<double, Chain>& kind = beside_[kind_of(chain)];
    kind.emplace(seconds, std::move(chain));
    if (kind.size() > kKeptOfKind) kind.erase(std::prev(kind.end()));
  }

  /// The same with one stage that recomputes, or no longer does, or all of it and not a part.
  void add_recomputing_otherwise(const Chain& from) {
    if (!recompute_is_a_choice_) return;
    for (size_t s = 0; s < from.stages.size(); ++s) {
      Chain other = from;
      FoundStage& stage = other.stages[s];
      if (stage.kept_to >= 0) {
        stage.kept_to = -1;
        wait(other);
      }
      stage.recompute = !stage.recompute;
      wait(std::move(other));
    }
  }

  /// Finding out what may recompute takes about as long.
  static double floor_steps(const Chain& chain) {
    return kFloorSteps + kFloorStageSteps * static_cast<double>(chain.stages.size());
  }

  void wait(Chain chain) {
    if (!seen_.insert(hash_of(key_of(chain, q_, kinds_))).second) return;
    const NetworkPace pace = evaluator_.floor(&chain);
    spent_ += floor_steps(chain);
    const bool kinds_alone = q_.inputs.devices_differ() && q_.inputs.slow_links.empty();
    if (kinds_alone && !alike_.insert(hash_of_alike(chain, pace)).second) return;
    if (pace.floor_seconds < best() * (1 - kGain)) {
      auto& queue = moving_ ? near_start_ : waiting_[kind_of(chain)];
      queue.emplace(pace.likely_seconds, Waiting{std::move(chain), pace.floor_seconds, pace.likely_seconds});
    } else if (pace.likely_seconds < kBeside * best()) {
      keep_beside(pace.likely_seconds, std::move(chain));
    }
  }

  void add_shapes(const std::vector<Shape>& shapes) {
    for (const Shape& shape : shapes)
      for (Chain& chain : chains_of(q_, shape)) add(std::move(chain));
  }

  /// Also with as many replicas of all stages again, and so on: on levels, the same pipeline in each group.
  void add_several_times(const Shape& shape) {
    const int64_t devices = std::accumulate(shape.replicas.begin(), shape.replicas.end(), int64_t{0});
    std::set<int64_t> times = {1};
    for (int64_t more = 2; more * devices <= q_.devices; more *= 2) times.insert(more);
    times.insert(q_.devices / devices);
    for (const int64_t each : times) {
      Shape several = shape;
      for (int64_t& replicas : several.replicas) replicas *= each;
      add_shapes({several});
    }
  }

  static bool has_stage(const Chain& chain, const FoundStage& stage) {
    return std::any_of(chain.stages.begin(), chain.stages.end(), [&](const FoundStage& each) {
      return each.from == stage.from && each.to == stage.to && each.replicas == stage.replicas &&
             each.ranks == stage.ranks;
    });
  }

  /// Where one stage sets the pace, a move that leaves it as it is gains nothing.
  void add_neighbours(const Chain& from) {
    moving_ = true;
    if (from.allowed_by(q_)) add_recomputing_otherwise(from);
    const Evaluator::Busiest busiest = evaluator_.busiest(from);
    const bool binds = busiest.seconds * kBinds > best();
    const auto consider = [&](Chain chain) {
      const bool keeps = std::all_of(busiest.stages.begin(), busiest.stages.end(),
                                     [&](size_t stage) { return has_stage(chain, from.stages[stage]); });
      if (!binds || !keeps) add(std::move(chain));
    };
    for (const Shape& shape : shapes_beside(q_, from)) {
      if (spent() >= most_spent()) break;
      if (least_seconds(q_, shape) > kBeside * best()) continue;
      consider(placed_like(shape, from));
      if (!seen_shapes_.insert(hash_of(shape)).second) continue;
      for (Chain& chain : chains_of(q_, shape)) consider(std::move(chain));
    }
    for (Chain& chain : with_devices_moved(q_, from))
      if (spent() < most_spent()) consider(std::move(chain));
    moving_ = false;
  }

  static uint64_t mixed(uint64_t hash, int64_t value) {
    hash ^= static_cast<uint64_t>(value) + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccd;
    return hash ^ (hash >> 33);
  }
  static uint64_t hash_of(const std::vector<int64_t>& numbers) {
    uint64_t hash = numbers.size();
    for (const int64_t number : numbers) hash = mixed(hash, number);
    return hash;
  }
  /// Of chains that are priced once: the same stages on devices that make the same floor.
  uint64_t hash_of_alike(const Chain& chain, const NetworkPace& pace) const {
    uint64_t hash = hash_of(shape_of(chain.stages));
    for (const FoundStage& stage : chain.stages) hash = mixed(hash, recomputed(stage));
    hash = mixed(hash, std::bit_cast<int64_t>(pace.floor_seconds));
    return mixed(hash, std::bit_cast<int64_t>(pace.likely_seconds));
  }
  static uint64_t hash_of(const Shape& shape) {
    uint64_t hash = hash_of(shape.replicas);
    for (const int cut : shape.cuts) hash = mixed(hash, cut);
    return hash;
  }

  void add_solution(const Solution& solution) {
    const bool placed = std::none_of(solution.stages.begin(), solution.stages.end(),
                                     [](const FoundStage& stage) { return stage.ranks.empty(); });
    if (placed == q_.inputs.placed()) add(Chain{solution.stages});
    if (q_.inputs.levels.size() > 1) {
      add_several_times(shape_of(solution.stages));
    } else {
      add_shapes({shape_of(solution.stages)});
    }
  }

  /// Prices what is likeliest of what waits; kinds of which many were priced in vain come later. False if
  /// nothing waits.
  bool price_next() {
    std::multimap<double, Waiting>* queue = nullptr;
    double least = kInfeasible;
    for (auto& [kind, waiting] : waiting_) {
      if (waiting.empty()) continue;
      const double seconds = waiting.begin()->first * slower(kind);
      if (queue != nullptr && seconds >= least) continue;
      queue = &waiting;
      least = seconds;
    }
    if (!again_.empty() && again_.begin()->first < least) queue = &again_;
    if (queue == nullptr) return false;
    const Waiting waiting = std::move(queue->begin()->second);
    queue->erase(queue->begin());
    price(waiting);
    return true;
  }

  /// False if it was not worth while.
  bool price(const Waiting& waiting) {
    if (waiting.floor >= best() * (1 - kGain)) return false;
    const double before = best();
    if (waiting.again && waiting.likely >= kNearBest * before) return false;
    // What is likely is mostly the pace of one stage or link: where several that have it take longer, so do
    // all.
    const std::pair alike(waiting.chain.stages.size(),
                          std::llround(std::log(waiting.likely) / kAlike) * (waiting.again ? -1 : 1));
    int& alike_in_vain = alike_in_vain_[alike];
    if (!few_ && alike_in_vain >= (waiting.again ? 1 : kVainAlike)) {
      if (!waiting.again) left_out_.push_back(waiting);
      return false;
    }
    const double most_steps = kPricePart * (most_spent() - spent());
    const auto price =
        evaluator_.price(waiting.chain, waiting.floor, waiting.again ? waiting.likely : before * (1 - kGain),
                         static_cast<int64_t>(most_steps / kEventSteps));
    if (price && !waiting.again && price->seconds > waiting.floor * kAboveFloor &&
        price->seconds < kNearBest * before && !q_.inputs.own_links())
      again_.emplace(std::sqrt(price->seconds * waiting.floor),
                     Waiting{waiting.chain, waiting.floor, price->seconds, true});
    alike_in_vain = price && price->seconds < before * (1 - kStep) ? 0 : alike_in_vain + 1;
    if (!waiting.again) {
      double& in_vain = in_vain_[kind_of(waiting.chain)];
      in_vain = price && price->seconds < before * (1 - kStep) ? 0 : in_vain + 1;
    }
    if (price) {
      keep({waiting.chain, price->depths, price->seconds});
      gained_ = best() < before * (1 - kStep);
    }
    return true;
  }

  /// What was likely to take as long as others did in vain waits once more. False if nothing was left out.
  bool price_left_out() {
    if (left_out_.empty()) return false;
    alike_in_vain_.clear();
    for (Waiting& waiting : left_out_) {
      const Kind kind = kind_of(waiting.chain);
      waiting_[kind].emplace(waiting.likely, std::move(waiting));
    }
    left_out_.clear();
    return true;
  }

  void price_waiting() {
    while (!done() && price_next()) {
    }
  }

  void keep(SolvedChain priced) {
    const auto at = std::upper_bound(priced_.begin(), priced_.end(), priced.seconds,
                                     [](double s, const SolvedChain& p) { return s < p.seconds; });
    if (priced.seconds < best() * (1 - kStep)) gained_at_ = spent() - rows_steps_;
    priced_.insert(at, std::move(priced));
    if (priced_.size() > kKept) priced_.pop_back();
  }

  const Problem& q_;
  Problem fewer_;  // the same, where devices may stay idle
  Evaluator evaluator_;
  const double bound_;
  const double most_;  // what is slower is of no interest
  const double effort_;
  const bool recompute_is_a_choice_;
  const std::vector<int64_t> kinds_;  // of devices
  const bool depth_by_devices_;       // of all stages, by how many there are behind the first
  const double most_steps_;
  double spent_ = 0;       // steps, but for prices
  double rows_steps_ = 0;  // of these, for rows
  double gained_at_ = 0;   // what was spent by the last gain that counts, but for rows
  bool capped_ = false;
  bool gained_ = false;                          // by what was priced last
  bool few_ = false;                             // chains, which are all tried
  std::unordered_set<uint64_t> seen_, started_;  // chains, by a hash of what tells them apart
  std::unordered_set<uint64_t> seen_shapes_, alike_;
  std::map<Kind, std::multimap<double, Waiting>> waiting_;   // by what is likely
  std::map<Kind, double> in_vain_;                           // priced since the last gain
  std::map<std::pair<size_t, int64_t>, int> alike_in_vain_;  // by stages and what was likely
  std::vector<Waiting> left_out_;                            // for these
  std::multimap<double, Waiting> near_start_;            // neighbours of the last start, by what is likely
  int vain_near_start_ = 0;                              // of these, priced
  bool moving_ = false;                                  // what is added is beside the start
  std::multimap<double, Waiting> again_;                 // by what they may come to
  std::map<Kind, std::multimap<double, Chain>> beside_;  // by what is likely: not better, but near
  std::map<Kind, int64_t> starts_;                       // of moves
  std::vector<SolvedChain> priced_;                      // fastest first
};

}  // namespace

SolvedChains solve(const Problem& problem, const PlanRequest& request, const std::vector<Solution>& known,
                   double bound_seconds) {
  Search search(problem, request, bound_seconds);
  search.seed(known);
  search.improve();
  return search.result();
}

}  // namespace pipewright

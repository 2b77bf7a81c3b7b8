#include "optimizer/pool.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "optimizer/demands.h"
#include "optimizer/few_cuts.h"
#include "optimizer/search_stage.h"

namespace pipewright {
namespace {

constexpr double kGain = 1e-4;         // less is no gain
constexpr double kNearBound = 2e-3;    // of the bound: then no more is looked for
constexpr double kWorthMore = 0.9999;  // further devices for less are not worth having
constexpr double kThin = 1.02;  // what a plan may take longer to be rid of a stage that hardly computes
constexpr size_t kStarts = 3;   // of local moves, at a time
constexpr int kMostStarts = 16;
constexpr double kFewShapes = 3000;
constexpr double kBeside = 1.5;
constexpr int64_t kFloorSpent = 8;      // what a floor costs, in minibatches of stages
constexpr int64_t kMostSpent = 400000;  // minibatches of stages

/// What tells candidates apart.
std::vector<int64_t> key_of(const Candidate& candidate) {
  std::vector<int64_t> key;
  for (const FoundStage& stage : candidate.stages) {
    key.push_back(stage.to);
    key.push_back(stage.replicas);
    key.insert(key.end(), stage.ranks.begin(), stage.ranks.end());
  }
  return key;
}

class Pool {
 public:
  Pool(const Question& question, const PlanRequest& request, double bound)
      : q_(question), pricer_(question, request), bound_(bound), effort_(request.effort) {}

  void seed(const std::vector<Answer>& found) {
    add_single_stages();  // their floors are their prices
    drain();
    slack_ = 1 + 3 * kGain;  // as fast on fewer devices is of interest too
    for (const Answer& answer : found) add_answer(answer);
    const bool near = drain();
    slack_ = 1;
    if (near) return;
    if (add_every_shape()) {
      drain();
      return;
    }
    add_searched();
    drain();
  }

  void improve() {
    for (int round = 0; round < kMostStarts && !done(); ++round) {
      const std::optional<Candidate> start = next_start();
      if (!start) return;
      add_neighbours(*start);
      drain();
    }
  }

  /// Prices the best plan with each of its stages that computes less than its messages take joined to a
  /// neighbour.
  void join_thin_stages() {
    if (priced_.empty() || !thin(priced_.front().candidate)) return;
    const Candidate from = priced_.front().candidate;
    slack_ = kThin;
    std::vector<int> cuts = {0};
    for (const FoundStage& stage : from.stages) cuts.push_back(stage.to);
    for (size_t s = 0; s + 1 < from.stages.size(); ++s) {
      if (thin(from.stages[s]) || thin(from.stages[s + 1]))
        merge(cuts, from.replicas(), s, q_.devices - from.devices());
    }
    while (!waiting_.empty()) {
      const Candidate candidate = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      price(candidate);
    }
  }

  std::optional<PoolAnswer> answer() const {
    if (priced_.empty()) return std::nullopt;
    if (thin(priced_.front().candidate)) {
      for (const Priced& each : priced_) {
        if (each.seconds <= kThin * priced_.front().seconds && !thin(each.candidate))
          return PoolAnswer{each.candidate, each.seconds, capped_};
      }
    }
    // Further devices are not worth a trifle.
    const Priced* best = &priced_.front();
    for (const Priced& each : priced_) {
      if (each.seconds * kWorthMore > priced_.front().seconds) break;
      if (each.candidate.devices() < best->candidate.devices()) best = &each;
    }
    return PoolAnswer{best->candidate, best->seconds, capped_};
  }

 private:
  struct Priced {
    Candidate candidate;
    double seconds = 0;
  };

  static constexpr double kNever = std::numeric_limits<double>::infinity();
  double best() const { return priced_.empty() ? kNever : priced_[0].seconds; }
  bool done() {
    if (best() <= bound_ * (1 + kNearBound)) return true;
    if (static_cast<double>(spent_ + pricer_.spent()) < effort_ * static_cast<double>(kMostSpent))
      return false;
    capped_ = true;
    return true;
  }

  /// Of the fastest the first that has not been one; then by floor, whatever lies near: the way to a faster
  /// plan may lead over plans that are none.
  std::optional<Candidate> next_start() {
    for (size_t rank = 0; rank < std::min(kStarts, priced_.size()); ++rank) {
      const Candidate& candidate = priced_[rank].candidate;
      if (started_.insert(key_of(candidate)).second) return candidate;
    }
    while (!beside_.empty()) {
      const auto first = beside_.begin();
      if (first->first > kBeside * best()) return std::nullopt;
      const Candidate candidate = std::move(first->second);
      beside_.erase(first);
      if (started_.insert(key_of(candidate)).second) return candidate;
    }
    return std::nullopt;
  }

  bool allowed(const Candidate& candidate) const {
    const auto stages = static_cast<int64_t>(candidate.stages.size());
    if (stages < q_.least_stages || candidate.devices() > q_.devices) return false;
    if (q_.all_devices && candidate.devices() != q_.devices) return false;
    bool replicated = false;
    for (const FoundStage& stage : candidate.stages) {
      if (stage.replicas < 1 || stage.replicas > q_.most_replicas) return false;
      replicated = replicated || stage.replicas > 1;
    }
    return replicated || !q_.replicated;
  }

  // --- candidates that wait, by floor ---

  void add(Candidate candidate) {
    if (!allowed(candidate)) return;
    if (!seen_.insert(key_of(candidate)).second) return;
    const double seconds = best() < kNever ? best() : std::max(bound_, 1e-300);
    const double floor = pricer_.floor_seconds(&candidate, seconds);
    if (q_.memory_bytes > 0 && q_.recompute == Recompute::kWhereNeeded) {
      Candidate roomy = candidate;
      roomy.usual_depths = true;
      const double other = pricer_.floor_seconds(&roomy, seconds);
      const bool differs =
          !std::equal(roomy.stages.begin(), roomy.stages.end(), candidate.stages.begin(),
                      [](const auto& a, const auto& b) { return a.recompute == b.recompute; });
      if (differs) wait(std::move(roomy), other);
    }
    wait(std::move(candidate), floor);
  }

  void wait(Candidate candidate, double floor) {
    spent_ += kFloorSpent;
    if (floor < best() * (1 - kGain) * slack_) {
      waiting_.emplace(floor, std::move(candidate));
    } else if (floor < kBeside * best()) {
      beside_.emplace(floor, std::move(candidate));
      if (beside_.size() > kKept) beside_.erase(std::prev(beside_.end()));
    }
  }

  /// In every layout.
  void add_shape(const std::vector<int>& cuts, const std::vector<int64_t>& replicas) {
    Candidate candidate;
    for (size_t s = 0; s < replicas.size(); ++s)
      candidate.stages.push_back({cuts[s], cuts[s + 1], replicas[s]});
    if (!allowed(candidate)) return;
    if (!pricer_.placed()) return add(std::move(candidate));
    for (Ranks& ranks : layouts(replicas, q_.inputs.levels)) {
      for (size_t s = 0; s < replicas.size(); ++s) candidate.stages[s].ranks = ranks[s];
      add(candidate);
    }
  }

  void add_answer(const Answer& answer) {
    std::vector<int> cuts = {0};
    std::vector<int64_t> replicas;
    bool placed = true;
    for (const FoundStage& stage : answer.stages) {
      cuts.push_back(stage.to);
      replicas.push_back(stage.replicas);
      placed = placed && !stage.ranks.empty();
    }
    if (placed == pricer_.placed()) add(Candidate{answer.stages});
    add_shape(cuts, replicas);
  }

  /// Simulates what waits, nearest first. True if nothing better can be.
  bool drain() {
    while (!waiting_.empty()) {
      if (slack_ <= 1 && done()) break;
      auto next = waiting_.begin();
      const double floor = next->first;
      Candidate candidate = std::move(next->second);
      waiting_.erase(next);
      if (floor >= best() * (1 - kGain) * slack_) break;
      price(candidate);
    }
    waiting_.clear();
    return best() <= bound_ * (1 + kNearBound);
  }

  void price(const Candidate& candidate) {
    const std::optional<CandidatePrice> price = pricer_.price(candidate, best() * slack_);
    if (!price) return;
    const auto at = std::upper_bound(priced_.begin(), priced_.end(), price->seconds,
                                     [](double s, const Priced& p) { return s < p.seconds; });
    priced_.insert(at, {candidate, price->seconds});
    if (priced_.size() > kKept) priced_.pop_back();
  }

  bool thin(const FoundStage& stage) const {
    const StageLoad load = load_between(*q_.states, stage.from, stage.to);
    double messages = 0;
    if (!load.first) messages += message_seconds(static_cast<double>(load.in_bytes), q_.inputs);
    if (!load.last) messages += message_seconds(static_cast<double>(load.out_bytes), q_.inputs);
    return load.compute_seconds() < messages;
  }
  bool thin(const Candidate& candidate) const {
    return std::any_of(candidate.stages.begin(), candidate.stages.end(),
                       [this](const FoundStage& stage) { return thin(stage); });
  }

  // --- where candidates come from ---

  void add_single_stages() {
    const int last = q_.states->last();
    for (int64_t m = 1; m <= q_.devices; m += m < 64 ? 1 : m / 8) add_shape({0, last}, {m});
    add_shape({0, last}, {q_.devices});
  }

  /// Every chain of stages with any replicas, where these are few. False: they are not.
  bool add_every_shape() {
    const int last = q_.states->last();
    const int64_t most = std::min<int64_t>(q_.devices, last);
    // chains[s][i]: ways to go on from state i in s stages.
    std::vector<std::vector<double>> chains(static_cast<size_t>(most) + 1,
                                            std::vector<double>(static_cast<size_t>(last) + 1, 0));
    chains[0][static_cast<size_t>(last)] = 1;
    double shapes = 0;
    double ways = 1;  // to give s stages at most all devices
    for (int64_t s = 1; s <= most; ++s) {
      for (int i = 0; i < last; ++i) {
        for (const int j : q_.states->after(i))
          chains[static_cast<size_t>(s)][static_cast<size_t>(i)] +=
              chains[static_cast<size_t>(s) - 1][static_cast<size_t>(j)];
      }
      ways *= static_cast<double>(q_.devices - s + 1) / static_cast<double>(s);
      shapes += chains[static_cast<size_t>(s)][0] * ways;
      if (shapes > kFewShapes) return false;
    }
    std::vector<int> cuts = {0};
    std::vector<int64_t> replicas;
    extend_shape(&cuts, &replicas, q_.devices);
    return true;
  }

  void extend_shape(std::vector<int>* cuts, std::vector<int64_t>* replicas, int64_t left) {
    if (cuts->back() == q_.states->last()) return add_shape(*cuts, *replicas);
    for (const int next : q_.states->after(cuts->back())) {
      const double mine = work(next) - work(cuts->back());
      for (int64_t m = 1; m <= left; ++m) {
        if (mine >= best() * static_cast<double>(m)) continue;
        cuts->push_back(next);
        replicas->push_back(m);
        extend_shape(cuts, replicas, left - m);
        cuts->pop_back();
        replicas->pop_back();
      }
    }
  }

  /// The search on one level, for several bandwidths, numbers of devices and of stages.
  void add_searched() {
    std::vector<Question> questions;
    const auto ask = [&](Question q) {
      questions.push_back(q);
      if (q.memory_bytes == 0) return;
      q.least_depths = true;
      questions.push_back(q);
      q.least_depths = false;
      for (const int64_t extra : {1, 2, 4}) {
        q.extra_in_flight = extra;
        questions.push_back(q);
      }
    };
    if (!pricer_.placed()) {
      ask(q_);
    } else {
      const std::vector<TopologyLevel> levels = q_.inputs.levels;
      std::set<double> bandwidths;
      std::set<int64_t> counts = {q_.devices};
      int64_t group = 1;
      for (const TopologyLevel& level : levels) {
        group *= level.count;
        if (group <= q_.devices) counts.insert(group);
        if (q_.devices / 2 > group) counts.insert(q_.devices / 2 / group * group);
        bandwidths.insert(level.bandwidth_bytes_per_second);
        // As if it were shared out among those who have it in common.
        const auto sharers = static_cast<double>(level.shared ? level.count : group / level.count);
        if (sharers > 1) bandwidths.insert(level.bandwidth_bytes_per_second / sharers);
      }
      for (const int64_t devices : counts) {
        for (const double bandwidth : bandwidths) {
          Question q = q_;
          q.inputs.levels.clear();
          q.inputs.bandwidth_bytes_per_second = bandwidth;
          q.inputs.latency_seconds = levels.back().latency_seconds;
          q.devices = devices;
          q.all_devices = false;
          ask(q);
        }
      }
    }
    const int64_t most = std::min<int64_t>(q_.devices, q_.states->last());
    for (const Question& q : questions) {
      if (!q.all_devices || q.devices <= 64) {
        if (const auto found = search(q)) add_answer(*found);
      }
      if (q.all_devices || q.single_stage) continue;
      for (const int64_t stages : {2, 3, 4, 6}) {
        if (stages > most || stages < q.least_stages) continue;
        if (const auto found = search_few_stages(q, stages)) add_answer(*found);
      }
    }
  }

  /// Among some of the cuts: local moves find the right ones.
  std::optional<Answer> search_few_stages(const Question& q, int64_t stages) {
    if (few_numbers_.empty()) {
      few_numbers_ = thinned(*q_.states, kFewCuts);
      few_ = some_of(*q_.states, few_numbers_);
    }
    Question few = q;
    few.states = &few_;
    StageDemands demands;
    demands.most_stages = stages;
    std::optional<Answer> found = search_with_demands(few, demands, {}, 2e-3);
    if (!found) return found;
    for (FoundStage& stage : found->stages) {
      stage.from = few_numbers_[static_cast<size_t>(stage.from)];
      stage.to = few_numbers_[static_cast<size_t>(stage.to)];
    }
    return found;
  }

  // --- local moves ---

  void add_neighbours(const Candidate& from) {
    std::vector<int> cuts = {0};
    for (const FoundStage& stage : from.stages) cuts.push_back(stage.to);
    const std::vector<int64_t> replicas = from.replicas();
    const size_t stages = replicas.size();
    const int64_t left = q_.devices - from.devices();

    add_shape(cuts, replicas);
    for (size_t s = 0; s < stages; ++s) {
      change_replicas(cuts, replicas, s, left);
      if (s + 1 < stages) {
        move_cut(cuts, replicas, s + 1);
        merge(cuts, replicas, s, left);
      }
      split(cuts, replicas, s, left);
    }
    if (pricer_.placed()) swap_devices(from);
  }

  void change_replicas(const std::vector<int>& cuts, const std::vector<int64_t>& replicas, size_t s,
                       int64_t left) {
    std::vector<int64_t> changed = replicas;
    for (const int64_t more : {int64_t{1}, left}) {
      if (more < 1 || more > left) continue;
      changed[s] = replicas[s] + more;
      add_shape(cuts, changed);
    }
    changed = replicas;
    if (replicas[s] == 1) return;
    --changed[s];
    add_shape(cuts, changed);
    for (size_t to = 0; to < replicas.size(); ++to) {
      if (to == s) continue;
      for (const int64_t moved : {int64_t{1}, replicas[s] / 2}) {
        if (moved < 1 || moved >= replicas[s]) continue;
        changed = replicas;
        changed[s] -= moved;
        changed[to] += moved;
        add_shape(cuts, changed);
      }
    }
  }

  /// Cuts beside the one before stage `s`.
  void move_cut(const std::vector<int>& cuts, const std::vector<int64_t>& replicas, size_t s) {
    for (const int cut : between(cuts[s - 1], cuts[s + 1], cuts[s])) {
      std::vector<int> moved = cuts;
      moved[s] = cut;
      add_shape(moved, replicas);
      // A device moves along with the work.
      const size_t gains = cut > cuts[s] ? s - 1 : s;
      const size_t loses = cut > cuts[s] ? s : s - 1;
      if (replicas[loses] < 2) continue;
      std::vector<int64_t> changed = replicas;
      ++changed[gains];
      --changed[loses];
      add_shape(moved, changed);
    }
  }

  void merge(const std::vector<int>& cuts, const std::vector<int64_t>& replicas, size_t s, int64_t left) {
    std::vector<int> fewer = cuts;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    std::vector<int64_t> merged = replicas;
    merged[s] += merged[s + 1];
    merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    add_shape(fewer, merged);
    if (merged[s] > 1) {
      --merged[s];
      add_shape(fewer, merged);
      ++merged[s];
    }
    if (left > 0) {
      ++merged[s];
      add_shape(fewer, merged);
    }
  }

  void split(const std::vector<int>& cuts, const std::vector<int64_t>& replicas, size_t s, int64_t left) {
    const int64_t most = replicas[s] + std::min<int64_t>(left, 1);
    if (most < 2) return;
    const double begin = work(cuts[s]);
    const double all = work(cuts[s + 1]) - begin;
    std::set<int64_t> counts = {std::max<int64_t>(2, replicas[s]), most};
    if (left >= replicas[s]) counts.insert(2 * replicas[s]);  // as many again
    for (const int64_t devices : counts) {
      std::set<int64_t> firsts = {1, devices / 2, devices - 1};
      for (const int64_t first : firsts) {
        if (first < 1 || first >= devices) continue;
        const double wanted = begin + all * static_cast<double>(first) / static_cast<double>(devices);
        for (const int cut : cuts_near(cuts[s], cuts[s + 1], wanted)) {
          std::vector<int> more = cuts;
          more.insert(more.begin() + static_cast<std::ptrdiff_t>(s) + 1, cut);
          std::vector<int64_t> parts = replicas;
          parts[s] = first;
          parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(s) + 1, devices - first);
          add_shape(more, parts);
        }
      }
    }
  }

  /// A device of one stage for one of another, in another group.
  void swap_devices(const Candidate& from) {
    int64_t group = 1;
    for (size_t level = 0; level + 1 < q_.inputs.levels.size(); ++level) {
      group *= q_.inputs.levels[level].count;
      for (size_t a = 0; a < from.stages.size(); ++a) {
        for (size_t b = a + 1; b < from.stages.size(); ++b) {
          std::set<std::pair<int64_t, int64_t>> tried;
          for (size_t p = 0; p < from.stages[a].ranks.size(); ++p) {
            for (size_t r = 0; r < from.stages[b].ranks.size(); ++r) {
              const int64_t ours = from.stages[a].ranks[p] / group;
              const int64_t theirs = from.stages[b].ranks[r] / group;
              if (ours == theirs || !tried.emplace(ours, theirs).second) continue;
              Candidate swapped = from;
              std::swap(swapped.stages[a].ranks[p], swapped.stages[b].ranks[r]);
              add(std::move(swapped));
            }
          }
        }
      }
    }
  }

  double work(int state) const {
    const State& at = q_.states->states[static_cast<size_t>(state)];
    return at.forward_seconds + at.backward_seconds;
  }

  std::vector<int> all_between(int from, int to) const {
    std::vector<int> cuts;
    const States& states = *q_.states;
    for (const int cut : states.after(from)) {
      if (cut >= to) break;
      const bool inside = states.nested || states.states[cut].done.is_subset_of(states.states[to].done);
      if (inside) cuts.push_back(cut);
    }
    return cuts;
  }

  /// Some of the cuts between two, near a third.
  std::vector<int> between(int from, int to, int near) const {
    std::vector<int> cuts = all_between(from, to);
    const auto at = std::lower_bound(cuts.begin(), cuts.end(), near) - cuts.begin();
    std::vector<int> some;
    for (const std::ptrdiff_t step : {-8, -4, -3, -2, -1, 1, 2, 3, 4, 8}) {
      const std::ptrdiff_t i = at + step;
      if (i >= 0 && i < static_cast<std::ptrdiff_t>(cuts.size()) && cuts[i] != near) some.push_back(cuts[i]);
    }
    return some;
  }

  /// The cut where so much work is done, two beside it and the cheapest around.
  std::vector<int> cuts_near(int from, int to, double wanted) const {
    const std::vector<int> cuts = all_between(from, to);
    if (cuts.size() <= 6) return cuts;
    std::ptrdiff_t at = 0;
    for (std::ptrdiff_t i = 1; i < static_cast<std::ptrdiff_t>(cuts.size()); ++i)
      if (std::abs(work(cuts[i]) - wanted) < std::abs(work(cuts[at]) - wanted)) at = i;
    std::ptrdiff_t cheapest = at;
    std::set<int> some;
    for (std::ptrdiff_t i = std::max<std::ptrdiff_t>(0, at - 8);
         i <= std::min<std::ptrdiff_t>(at + 8, static_cast<std::ptrdiff_t>(cuts.size()) - 1); ++i) {
      if (std::abs(i - at) <= 1) some.insert(cuts[i]);
      const auto bytes = [&](std::ptrdiff_t k) {
        return q_.states->states[static_cast<size_t>(cuts[k])].cut_bytes;
      };
      if (bytes(i) < bytes(cheapest)) cheapest = i;
    }
    some.insert(cuts[cheapest]);
    return {some.begin(), some.end()};
  }

  static constexpr size_t kKept = 32;
  static constexpr int kFewCuts = 40;
  const Question& q_;
  Pricer pricer_;
  double bound_;
  double effort_;
  int64_t spent_ = 0;
  std::set<std::vector<int64_t>> started_;
  std::multimap<double, Candidate> beside_;  // by floor: not better, but near
  std::vector<int> few_numbers_;
  States few_;
  bool capped_ = false;
  double slack_ = 1;  // how much slower than the best is still of interest
  std::set<std::vector<int64_t>> seen_;
  std::multimap<double, Candidate> waiting_;  // by floor
  std::vector<Priced> priced_;                // fastest first
};

}  // namespace

std::optional<PoolAnswer> best_as_simulated(const Question& question, const PlanRequest& request,
                                            const std::vector<Answer>& found, double bound_seconds) {
  const auto run = [&](const Question& q, const std::vector<Answer>& begin) {
    Pool pool(q, request, bound_seconds);
    pool.seed(begin);
    pool.improve();
    pool.join_thin_stages();
    return pool.answer();
  };
  std::optional<PoolAnswer> best = run(question, found);
  const bool near = best && best->seconds <= bound_seconds * (1 + kNearBound);
  if (!best || near || question.least_stages > 1 || best->candidate.stages.size() > 1) return best;
  // A single stage that is far ahead of all pipelines known hides the way to better ones.
  Question pipelines = question;
  pipelines.least_stages = 2;
  pipelines.replicated = question.most_replicas > 1 && question.devices > 2;
  if (question.devices < 2 || question.all_devices) return best;
  const std::optional<Answer> begin = search(pipelines);
  if (!begin) return best;
  std::optional<PoolAnswer> other = run(pipelines, {*begin});
  if (other && other->seconds < best->seconds * (1 - kGain)) {
    other->capped = other->capped || best->capped;
    best = std::move(other);
  }
  return best;
}

}  // namespace pipewright

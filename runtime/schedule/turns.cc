#include "runtime/schedule/turns.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {
namespace {

// Depths and distances beyond any span; small enough that what is made of them does not overflow.
constexpr int64_t kUnlimited = int64_t{1} << 31;

}  // namespace

std::vector<int64_t> shares_cycle(const std::vector<int64_t>& shares) {
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<int64_t> gained(shares.size(), 0), cycle;
  cycle.reserve(sum);
  while (static_cast<int64_t>(cycle.size()) < sum) {
    for (size_t replica = 0; replica < shares.size(); ++replica) gained[replica] += shares[replica];
    const auto most = std::max_element(gained.begin(), gained.end());
    *most -= sum;
    cycle.push_back(most - gained.begin());
  }
  return cycle;
}

int64_t round_that_bounds_crossing(int64_t turn, int64_t ahead) {
  while (turn < ahead) turn *= 2;
  return turn;
}

StageTurns::StageTurns(const PipelineShape& shape, int64_t stage)
    : replicas_(shape.replicas.at(stage)),
      takers_(shape.splits(stage) ? 1 : replicas_),
      cycle_length_(takers_),
      splits_(shape.splits(stage)) {
  if (!shape.shares.empty() && !shape.shares.at(stage).empty()) {
    const std::vector<int64_t>& shares = shape.shares[stage];
    smallest_share_ = *std::min_element(shares.begin(), shares.end());
    largest_share_ = *std::max_element(shares.begin(), shares.end());
    if (largest_share_ > 1) {
      cycle_ = shares_cycle(shares);
      cycle_length_ = static_cast<int64_t>(cycle_.size());
      positions_.resize(replicas_);
      for (int64_t at = 0; at < cycle_length_; ++at) positions_[cycle_[at]].push_back(at);
    }
  }
  const WeightRuleFacts& rule = facts_of(shape.weights);
  round_length_ = rule.one_update_for_all ? shape.microbatches : shape.accumulation * cycle_length_;
  if (!rule.bounds_crossing || !shape.trains(stage)) return;
  PipelineShape unbounded = shape;  // depths do not depend on rounds
  unbounded.weights = WeightRule::kStash;
  round_length_ = round_that_bounds_crossing(round_length_, run_ahead(usable_in_flight(unbounded)[stage]));
}

int64_t StageTurns::round_size(int64_t round, Span span) const {
  const int64_t begin = std::max(span.first, round * round_length_);
  const int64_t end = std::min(span.end(), (round + 1) * round_length_);
  return std::max<int64_t>(0, end - begin);
}

int64_t StageTurns::round_begin(int64_t round, Span span) const {
  PW_CHECK(round_size(round, span) > 0, "round " << round << " outside the span");
  return std::max(span.first, round * round_length_);
}

bool StageTurns::is_last_of_round(int64_t k, Span span) const {
  const int64_t end = std::min(span.end(), (round_of(k) + 1) * round_length_);
  for (int64_t later = k + 1; later < end; ++later)
    if (replica_of(later) == replica_of(k)) return false;
  return true;
}

Rounds StageTurns::rounds_of(Span span) const {
  const int64_t first = round_of(span.first);
  return {first, span.count == 0 ? 0 : round_of(span.end() - 1) + 1 - first};
}

std::vector<int64_t> StageTurns::minibatches_of(int64_t replica, Span span) const {
  std::vector<int64_t> all;
  if (cycle_.empty()) {
    const int64_t behind = ((replica - span.first) % takers_ + takers_) % takers_;
    all.reserve(span.count / takers_ + 1);
    for (int64_t k = span.first + behind; k < span.end(); k += takers_) all.push_back(k);
    return all;
  }
  const std::vector<int64_t>& positions = positions_[replica];
  for (int64_t cycle = span.first / cycle_length_; cycle * cycle_length_ < span.end(); ++cycle)
    for (const int64_t position : positions) {
      const int64_t k = cycle * cycle_length_ + position;
      if (k >= span.first && k < span.end()) all.push_back(k);
    }
  return all;
}

int64_t StageTurns::most_of_one_replica(int64_t consecutive) const {
  if (cycle_.empty()) return consecutive / takers_ + (consecutive % takers_ > 0);
  const int64_t cycles = consecutive / cycle_length_, rest = consecutive % cycle_length_;
  int64_t most = 0;
  for (const std::vector<int64_t>& positions : positions_) {
    const auto share = static_cast<int64_t>(positions.size());
    // Windows that begin at one of the replica's own are the fullest.
    int64_t fullest = 0;
    for (int64_t from = 0; from < share; ++from) {
      int64_t own = 0;
      while (own < share) {
        const int64_t to = from + own;
        const int64_t distance = positions[to % share] + (to >= share ? cycle_length_ : 0) - positions[from];
        if (distance >= rest) break;
        ++own;
      }
      fullest = std::max(fullest, own);
    }
    most = std::max(most, cycles * share + fullest);
  }
  return most;
}

int64_t StageTurns::run_ahead(int64_t depth) const {
  const int64_t before = std::min(depth, kUnlimited) - 1;
  int64_t ahead = before * cycle_length_ / largest_share_;
  // Evenly spread shares would never have more in flight; take back what an uneven spread adds.
  while (!cycle_.empty() && ahead > 0 && most_of_one_replica(ahead + 1) > depth) --ahead;
  return ahead;
}

int64_t StageTurns::depth_that_runs_ahead(int64_t minibatches, int64_t most) const {
  if (cycle_.empty()) return 1 + std::min(most - 1, minibatches / takers_);
  int64_t fits = 1, too_deep = std::min(most, kUnlimited) + 1;
  while (too_deep - fits > 1) {
    const int64_t middle = fits + (too_deep - fits) / 2;
    (run_ahead(middle) <= minibatches ? fits : too_deep) = middle;
  }
  return fits;
}

// Places of two cycles meet, once in the least common multiple of both, that are equal modulo the greatest
// common divisor.
std::vector<ReplicaPair> replica_pairs(const StageTurns& first, const StageTurns& second) {
  const int64_t apart = std::gcd(first.cycle_length(), second.cycle_length());
  std::vector<int64_t> meet(static_cast<size_t>(first.replicas() * second.replicas()), 0);
  for (int64_t a = 0; a < first.cycle_length(); ++a)
    for (int64_t b = a % apart; b < second.cycle_length(); b += apart)
      ++meet[static_cast<size_t>(first.replica_of(a) * second.replicas() + second.replica_of(b))];
  const auto all = static_cast<double>(first.cycle_length() * second.cycle_length());
  std::vector<ReplicaPair> pairs;
  for (int64_t at = 0; at < first.replicas() * second.replicas(); ++at) {
    const int64_t times = meet[static_cast<size_t>(at)];
    if (times == 0) continue;
    pairs.push_back(
        {at / second.replicas(), at % second.replicas(), static_cast<double>(times * apart) / all});
  }
  return pairs;
}

std::optional<int64_t> pipeline_period(const PipelineShape& shape, int64_t longest, bool rounds) {
  int64_t period = 1;
  for (int64_t stage = 0; stage < shape.stages() && period <= longest; ++stage) {
    const StageTurns turns(shape, stage);
    period = std::lcm(period, turns.cycle_length());
    if (rounds) period = std::lcm(period, turns.round_length());
  }
  if (period > longest) return std::nullopt;
  return period;
}

int64_t replica_of(const PipelineShape& shape, int64_t stage, int64_t minibatch) {
  return StageTurns(shape, stage).replica_of(minibatch);
}

int64_t round_of(const PipelineShape& shape, int64_t stage, int64_t minibatch) {
  return StageTurns(shape, stage).round_of(minibatch);
}

int64_t round_size(const PipelineShape& shape, int64_t stage, int64_t round, Span span) {
  return StageTurns(shape, stage).round_size(round, span);
}

}  // namespace pipewright

#include "optimizer/plan/chain_moves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "optimizer/cost/placed.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/search/search_stage.h"

namespace pipewright {
namespace {

constexpr double kUnfit = std::numeric_limits<double>::infinity();
constexpr double kWorthMoving = 1e-4;  // a smaller gain is none
constexpr size_t kTakers = 12;         // of idle ranks, that are looked at
constexpr int kNearCut = 3;            // where a stage is split: the cheapest cut so near to the middle
// Steps (counted_work.h).
constexpr double kStageSteps = 150, kRankSteps = 40, kPairSteps = 3;

int64_t ranks_in(const std::vector<FoundStage>& stages) {
  return std::accumulate(stages.begin(), stages.end(), int64_t{0},
                         [](int64_t sum, const FoundStage& stage) { return sum + stage.replicas; });
}

void give(FoundStage* stage, const std::vector<int64_t>& ranks) {
  stage->ranks.insert(stage->ranks.end(), ranks.begin(), ranks.end());
  stage->replicas = static_cast<int64_t>(stage->ranks.size());
}

int64_t take_last(FoundStage* stage) {
  const int64_t rank = stage->ranks.back();
  stage->ranks.pop_back();
  --stage->replicas;
  return rank;
}

void join_next(std::vector<FoundStage>* stages, size_t s) {
  (*stages)[s].to = (*stages)[s + 1].to;
  give(&(*stages)[s], (*stages)[s + 1].ranks);
  stages->erase(stages->begin() + static_cast<std::ptrdiff_t>(s) + 1);
}

/// Two stages in place of one of two replicas or more, with so many of them in the first. False where there
/// is no cut.
bool split(const States& states, size_t s, int64_t first, std::vector<FoundStage>* stages) {
  const FoundStage whole = (*stages)[s];
  const auto done = [&](int i) {
    const State& state = states.states[static_cast<size_t>(i)];
    return state.forward_seconds + state.backward_seconds;
  };
  const double wanted = done(whole.from) + (done(whole.to) - done(whole.from)) * static_cast<double>(first) /
                                               static_cast<double>(whole.replicas);
  int middle = whole.from + 1;
  while (middle + 1 < whole.to && done(middle) < wanted) ++middle;
  int cut = -1;
  for (int i = std::max(whole.from + 1, middle - kNearCut); i <= std::min(whole.to - 1, middle + kNearCut);
       ++i) {
    const auto bytes = [&](int k) { return states.states[static_cast<size_t>(k)].cut_bytes; };
    if (cut < 0 || bytes(i) < bytes(cut)) cut = i;
  }
  if (cut < 0) return false;
  FoundStage before{whole.from, cut, first}, after{cut, whole.to, whole.replicas - first};
  before.ranks.assign(whole.ranks.begin(), whole.ranks.begin() + first);
  after.ranks.assign(whole.ranks.begin() + first, whole.ranks.end());
  (*stages)[s] = std::move(before);
  stages->insert(stages->begin() + static_cast<std::ptrdiff_t>(s) + 1, std::move(after));
  return true;
}

}  // namespace

ChainMoves::ChainMoves(const Problem& problem, CountedWork* work)
    : q_(problem), costs_(problem.inputs), work_(work) {}

void ChainMoves::price(RankedChain* chain) const {
  chain->seconds = kUnfit;
  std::vector<StageLoad> loads;
  std::vector<Stage> stages;
  int64_t later = ranks_in(chain->stages);
  for (FoundStage& found : chain->stages) {
    const auto replicas = static_cast<double>(found.replicas);
    work_->spend(kStageSteps + kRankSteps * replicas +
                 (q_.inputs.speeds.empty() ? 0 : kPairSteps * replicas * replicas));
    later -= found.replicas;
    StageLoad load = search_detail::load_of(q_, found.from, found.to);
    const int64_t limit = memory_limit_bytes(q_.inputs, q_.memory_bytes, found.ranks);
    if (limit > 0) load.workspace = workspace_between(*q_.states, found.from, found.to);
    const auto recompute = search_detail::recompute_to_fit(q_, load, found.replicas, later, limit);
    if (!recompute) return;
    load.recompute = found.recompute = *recompute;
    loads.push_back(std::move(load));
    stages.emplace_back().ranks = found.ranks;
  }
  for (size_t s = 0; !q_.inputs.speeds.empty() && s < stages.size(); ++s) {
    std::vector<double> seconds;
    for (const int64_t rank : stages[s].ranks)
      seconds.push_back(compute_seconds_on(loads[s], q_.inputs, rank));
    std::vector<int64_t>& shares = chain->stages[s].shares;
    shares = best_shares(seconds, q_.inputs.most_minibatches_of_round);
    if (std::all_of(shares.begin(), shares.end(), [](int64_t share) { return share == 1; })) shares.clear();
    stages[s].shares = shares;
  }
  const PlacedPrice price = price_placed(loads, stages, q_.inputs);
  chain->seconds = price.total_seconds();
  chain->slowest = 0;
  for (size_t s = 0; s < stages.size(); ++s)
    if (price.stages[s].total_seconds() > price.stages[chain->slowest].total_seconds()) chain->slowest = s;
}

void ChainMoves::use_all(std::vector<int64_t> idle, RankedChain* chain) const {
  const auto seconds_each = [&](const FoundStage& stage) {
    const StageLoad load = load_between(*q_.states, stage.from, stage.to);
    return load.compute_seconds() / static_cast<double>(stage.replicas);
  };
  while (!idle.empty()) {
    std::vector<size_t> takers(chain->stages.size());
    std::iota(takers.begin(), takers.end(), size_t{0});
    std::stable_sort(takers.begin(), takers.end(), [&](size_t a, size_t b) {
      return seconds_each(chain->stages[a]) > seconds_each(chain->stages[b]);
    });
    const auto weight = [&](size_t s) {
      return load_between(*q_.states, chain->stages[s].from, chain->stages[s].to).trainable_bytes;
    };
    const size_t lightest = *std::min_element(takers.begin(), takers.end(),
                                              [&](size_t a, size_t b) { return weight(a) < weight(b); });
    if (takers.size() > kTakers) takers.resize(kTakers);
    if (std::find(takers.begin(), takers.end(), lightest) == takers.end()) takers.push_back(lightest);
    std::optional<RankedChain> best;
    const auto consider = [&](RankedChain other) {
      price(&other);
      const bool better = !best || other.seconds < best->seconds * (1 - kWorthMoving) ||
                          (other.seconds < best->seconds * (1 + kWorthMoving) &&
                           ranks_in(other.stages) > ranks_in(best->stages));
      if (better) best = std::move(other);
    };
    for (const size_t s : takers) {
      if (best && best->seconds < kUnfit && !work_->has()) break;
      for (const size_t count : {size_t{1}, idle.size()}) {
        RankedChain grown = *chain;
        give(&grown.stages[s], {idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(count)});
        RankedChain parted = grown;
        consider(std::move(grown));
        if (split(*q_.states, s, parted.stages[s].replicas / 2, &parted.stages)) consider(std::move(parted));
        if (idle.size() == 1) break;
      }
    }
    idle.erase(idle.begin(), idle.begin() + (ranks_in(best->stages) - ranks_in(chain->stages)));
    *chain = std::move(*best);
  }
}

/// Where links differ it matters where a rank is; otherwise only how fast it is.
bool ChainMoves::worth_swapping(int64_t ours, int64_t theirs) const {
  if (q_.inputs.levels.size() > 1) return true;
  return !q_.inputs.speeds.empty() &&
         q_.inputs.speeds[static_cast<size_t>(ours)] < q_.inputs.speeds[static_cast<size_t>(theirs)];
}

void ChainMoves::improve(RankedChain* chain) const {
  const auto takes = [&](RankedChain other) {
    if (!work_->has()) return false;
    price(&other);
    if (!(other.seconds < chain->seconds * (1 - kWorthMoving))) return false;
    *chain = std::move(other);
    return true;
  };
  const auto step = [&] {
    const size_t b = chain->slowest;
    const size_t count = chain->stages.size();
    for (const int by : {1, -1, 2, -2, 4, -4, 8, -8}) {
      for (const size_t cut : {b, b + 1}) {  // before stage `cut`
        if (cut == 0 || cut == count) continue;
        RankedChain other = *chain;
        const int to = other.stages[cut].from + by;
        if (to <= other.stages[cut - 1].from || to >= other.stages[cut].to) continue;
        other.stages[cut - 1].to = other.stages[cut].from = to;
        if (takes(std::move(other))) return true;
      }
    }
    for (size_t s = 0; s < count; ++s) {
      if (s == b || chain->stages[s].replicas < 2) continue;
      RankedChain other = *chain;
      give(&other.stages[b], {take_last(&other.stages[s])});
      if (takes(std::move(other))) return true;
    }
    for (size_t s = 0; s < count; ++s) {
      for (size_t ours = 0; s != b && ours < chain->stages[b].ranks.size(); ++ours) {
        for (size_t theirs = 0; theirs < chain->stages[s].ranks.size(); ++theirs) {
          if (!worth_swapping(chain->stages[b].ranks[ours], chain->stages[s].ranks[theirs])) continue;
          RankedChain other = *chain;
          std::swap(other.stages[b].ranks[ours], other.stages[s].ranks[theirs]);
          if (takes(std::move(other))) return true;
        }
      }
    }
    for (size_t s = 0; s + 1 < count; ++s) {
      RankedChain joined = *chain;
      join_next(&joined.stages, s);
      if (s == b || s + 1 == b) {
        if (takes(std::move(joined))) return true;
        continue;
      }
      const size_t at = b > s ? b - 1 : b;
      give(&joined.stages[at], {take_last(&joined.stages[s])});
      RankedChain parted = joined;
      if (takes(std::move(joined))) return true;
      if (split(*q_.states, at, parted.stages[at].replicas / 2, &parted.stages) && takes(std::move(parted)))
        return true;
    }
    RankedChain parted = *chain;
    return chain->stages[b].replicas > 1 &&
           split(*q_.states, b, chain->stages[b].replicas / 2, &parted.stages) && takes(std::move(parted));
  };
  while (work_->has() && step()) {
  }
}

}  // namespace pipewright

#include "optimizer/plan/neighbours.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "optimizer/cost/stage_memory.h"
#include "optimizer/plan/moves.h"

namespace pipewright {
namespace {

/// A device of one stage swapped for one of another: of another kind, or in another group.
std::vector<Ranks> swapped(const Ranks& ranks, const CostInputs& inputs) {
  std::vector<Ranks> found;
  std::vector<int64_t> groups;  // devices of each
  int64_t group = 1;
  for (size_t level = 0; level + 1 < inputs.levels.size(); ++level)
    groups.push_back(group *= inputs.levels[level].count);
  // What a swap is: who stands where afterwards, by group and kind.
  const auto place_of = [&](int64_t rank) {
    std::vector<int64_t> place;
    for (const int64_t size : groups) place.push_back(rank / size);
    int64_t kind = 0;
    while (!inputs.same_kind(kind, rank)) ++kind;
    place.push_back(kind);
    return place;
  };
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (size_t b = a + 1; b < ranks.size(); ++b) {
      std::set<std::pair<std::vector<int64_t>, std::vector<int64_t>>> tried;
      for (size_t p = 0; p < ranks[a].size(); ++p) {
        for (size_t r = 0; r < ranks[b].size(); ++r) {
          std::vector<int64_t> ours = place_of(ranks[a][p]), theirs = place_of(ranks[b][r]);
          if (ours == theirs || !tried.emplace(std::move(ours), std::move(theirs)).second) continue;
          Ranks other = ranks;
          std::swap(other[a][p], other[b][r]);
          found.push_back(std::move(other));
        }
      }
    }
  }
  return found;
}

/// A device of one stage, one of each kind that it has, goes to another stage.
std::vector<Ranks> handed_over(const Ranks& ranks, const CostInputs& inputs) {
  std::vector<Ranks> found;
  for (size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a].size() < 2) continue;
    for (size_t p = 0; p < ranks[a].size(); ++p) {
      const auto alike = [&](int64_t rank) { return inputs.same_kind(rank, ranks[a][p]); };
      if (std::any_of(ranks[a].begin(), ranks[a].begin() + static_cast<std::ptrdiff_t>(p), alike)) continue;
      for (size_t b = 0; b < ranks.size(); ++b) {
        if (b == a) continue;
        Ranks other = ranks;
        other[b].push_back(ranks[a][p]);
        other[a].erase(other[a].begin() + static_cast<std::ptrdiff_t>(p));
        found.push_back(std::move(other));
      }
    }
  }
  return found;
}

Chain chain_of(const Shape& shape) {
  Chain chain;
  for (size_t s = 0; s < shape.replicas.size(); ++s)
    chain.stages.push_back({shape.cuts[s], shape.cuts[s + 1], shape.replicas[s]});
  return chain;
}

/// The stages whose replicas have most to do on the fastest devices, or those that keep most on the largest.
Ranks most_to_most(const Question& q, const Chain& chain, bool memory) {
  std::vector<std::pair<double, size_t>> stages;
  for (size_t s = 0; s < chain.stages.size(); ++s) {
    const FoundStage& stage = chain.stages[s];
    double needs = least_between(*q.states, stage.from, stage.to) / static_cast<double>(stage.replicas);
    if (memory) {
      StageLoad load = load_between(*q.states, stage.from, stage.to);
      load.workspace = workspace_between(*q.states, stage.from, stage.to);
      needs = static_cast<double>(stage_memory(load, stage.replicas, 1, q.inputs).total_bytes());
    }
    stages.emplace_back(-needs, s);
  }
  std::sort(stages.begin(), stages.end());
  std::vector<std::pair<double, int64_t>> devices;
  for (int64_t d = 0; d < chain.devices(); ++d) {
    const auto at = static_cast<size_t>(d);
    double has = q.inputs.paces[at];
    if (memory) has = q.inputs.memories[at] > 0 ? static_cast<double>(q.inputs.memories[at]) : kInfeasible;
    devices.emplace_back(-has, d);
  }
  std::sort(devices.begin(), devices.end());
  Ranks ranks(chain.stages.size());
  auto next = devices.begin();
  for (const auto& [needs, s] : stages)
    for (int64_t r = 0; r < chain.stages[s].replicas; ++r) ranks[s].push_back((next++)->second);
  for (std::vector<int64_t>& stage : ranks) std::sort(stage.begin(), stage.end());
  return ranks;
}

}  // namespace

double least_seconds(const Question& q, const Shape& shape) {
  const double fastest = *std::max_element(q.inputs.paces.begin(), q.inputs.paces.end());
  double least = 0;
  for (size_t s = 0; s < shape.replicas.size(); ++s) {
    const double work = least_between(*q.states, shape.cuts[s], shape.cuts[s + 1]);
    least = std::max(least, work / static_cast<double>(shape.replicas[s]) / fastest);
  }
  return least;
}

std::vector<Chain> chains_of(const Question& q, const Shape& shape) {
  const Chain chain = chain_of(shape);
  if (!chain.allowed_by(q)) return {};
  std::vector<Chain> all;
  const std::vector<TopologyLevel>& levels = q.inputs.levels;
  std::vector<Ranks> ways = layouts(shape.replicas, levels);
  if (levels.size() < 2) {
    // Also from the other end of the devices, and from the last stage.
    std::vector<int64_t> backwards(shape.replicas.rbegin(), shape.replicas.rend());
    Ranks other = layouts(backwards, levels).front();
    std::reverse(other.begin(), other.end());
    ways.push_back(std::move(other));
    ways.push_back(most_to_most(q, chain, /*memory=*/false));
    ways.push_back(most_to_most(q, chain, /*memory=*/true));
  }
  for (const Ranks& ranks : ways) all.push_back(chain.placed_on(ranks));
  return all;
}

std::vector<Shape> shapes_beside(const Question& q, const Chain& from) {
  return neighbours(q, shape_of(from.stages));
}

Chain placed_like(const Shape& shape, const Chain& from) {
  return chain_of(shape).placed_on(dealt_out(from.ranks(), shape.replicas));
}

std::vector<Chain> with_devices_moved(const Question& q, const Chain& from) {
  std::vector<Chain> found;
  const auto add = [&](const std::vector<Ranks>& ways) {
    for (const Ranks& ranks : ways) {
      Chain chain = from.placed_on(ranks);
      for (FoundStage& stage : chain.stages) stage.replicas = static_cast<int64_t>(stage.ranks.size());
      if (chain.allowed_by(q)) found.push_back(std::move(chain));
    }
  };
  add(swapped(from.ranks(), q.inputs));
  add(handed_over(from.ranks(), q.inputs));
  return found;
}

}  // namespace pipewright

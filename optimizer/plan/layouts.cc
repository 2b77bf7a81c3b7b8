#include "optimizer/plan/layouts.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace pipewright {
namespace {

Ranks in_a_row(const std::vector<int64_t>& replicas, const std::vector<size_t>& order) {
  Ranks ranks(replicas.size());
  int64_t next = 0;
  for (const size_t stage : order)
    for (int64_t q = 0; q < replicas[stage]; ++q) ranks[stage].push_back(next++);
  return ranks;
}

/// An order of the stages in which whole groups are filled first, by stages that share no group with another
/// where that can be.
std::vector<size_t> packed(const std::vector<int64_t>& replicas, int64_t group) {
  std::vector<size_t> order;
  std::vector<char> placed(replicas.size(), 0);
  for (size_t stage = 0; stage < replicas.size(); ++stage) {
    if (replicas[stage] % group != 0) continue;
    order.push_back(stage);
    placed[stage] = 1;
  }
  // Then neighbours that fill a group together; then what fits best.
  int64_t filled = 0;
  for (size_t left = replicas.size() - order.size(); left > 0; --left) {
    size_t best = replicas.size();
    int64_t best_waste = 0;
    for (size_t stage = 0; stage < replicas.size(); ++stage) {
      if (placed[stage] != 0) continue;
      const int64_t over = (filled + replicas[stage]) % group;
      // What is cut apart, or left to fill.
      const bool straddles = filled > 0 && filled + replicas[stage] > group;
      const int64_t waste = (straddles ? group : 0) + (over == 0 ? 0 : group - over);
      if (best < replicas.size() && best_waste <= waste) continue;
      best = stage;
      best_waste = waste;
    }
    placed[best] = 1;
    order.push_back(best);
    filled = (filled + replicas[best]) % group;
  }
  return order;
}

/// Each stage in all of the groups alike. Empty if that cannot be.
Ranks paired(const std::vector<int64_t>& replicas, int64_t group) {
  const int64_t all = std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
  if (all % group != 0 || all == group) return {};
  const int64_t groups = all / group;
  for (const int64_t count : replicas)
    if (count % groups != 0) return {};
  Ranks ranks(replicas.size());
  int64_t first = 0;
  for (size_t stage = 0; stage < replicas.size(); ++stage) {
    for (int64_t q = 0; q < replicas[stage]; ++q)
      ranks[stage].push_back(q % groups * group + first + q / groups);
    first += replicas[stage] / groups;
  }
  return ranks;
}

/// Of a run of stages each in several groups alike, the others in a row on what is left.
void add_runs(const std::vector<int64_t>& replicas, int64_t group, const std::function<void(Ranks)>& add) {
  for (size_t first = 0; first < replicas.size(); ++first) {
    int64_t all = 0;
    for (size_t last = first; last < replicas.size(); ++last) {
      all += replicas[last];
      const int64_t groups = all / group;
      if (all % group != 0 || groups < 2 || (first == 0 && last + 1 == replicas.size())) continue;
      const auto begin = replicas.begin() + static_cast<std::ptrdiff_t>(first);
      const auto end = replicas.begin() + static_cast<std::ptrdiff_t>(last) + 1;
      if (std::any_of(begin, end, [&](int64_t count) { return count % groups != 0; })) continue;
      const Ranks run = paired({begin, end}, group);
      Ranks ranks(replicas.size());
      int64_t next = all;
      for (size_t stage = 0; stage < replicas.size(); ++stage) {
        if (stage >= first && stage <= last) {
          ranks[stage] = run[stage - first];
        } else {
          for (int64_t q = 0; q < replicas[stage]; ++q) ranks[stage].push_back(next++);
        }
      }
      add(std::move(ranks));
    }
  }
}

/// Replicas of a stage round robin over the groups.
Ranks spread(Ranks ranks, int64_t group) {
  for (std::vector<int64_t>& stage : ranks) {
    std::vector<std::pair<int64_t, int64_t>> keyed;  // how many of its group come before it, rank
    std::vector<int64_t> sorted = stage;
    std::sort(sorted.begin(), sorted.end());
    int64_t before = 0;
    for (size_t q = 0; q < sorted.size(); ++q) {
      before = q > 0 && sorted[q] / group == sorted[q - 1] / group ? before + 1 : 0;
      keyed.emplace_back(before, sorted[q]);
    }
    std::sort(keyed.begin(), keyed.end());
    for (size_t q = 0; q < stage.size(); ++q) stage[q] = keyed[q].second;
  }
  return ranks;
}

}  // namespace

Ranks dealt_out(const Ranks& ranks, const std::vector<int64_t>& replicas) {
  const int64_t devices = std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
  std::vector<int64_t> order;
  std::vector<char> used(static_cast<size_t>(devices), 0);
  for (const std::vector<int64_t>& stage : ranks) {
    for (const int64_t rank : stage) {
      if (rank >= devices) continue;
      order.push_back(rank);
      used[static_cast<size_t>(rank)] = 1;
    }
  }
  for (int64_t device = 0; device < devices; ++device)
    if (used[static_cast<size_t>(device)] == 0) order.push_back(device);
  Ranks dealt;
  auto next = order.begin();
  for (const int64_t count : replicas) {
    dealt.emplace_back(next, next + count);
    next += count;
  }
  return dealt;
}

Ranks in_order_met(const Ranks& ranks, const std::vector<TopologyLevel>& levels) {
  int64_t devices = 1;
  for (const TopologyLevel& level : levels) devices *= level.count;
  // By level, from the outside in: of each member its new number in its group, and how many a group has by
  // now.
  struct Numbers {
    int64_t below = 1;
    std::vector<int64_t> member, met;
  };
  std::vector<Numbers> numbers(levels.size());
  int64_t below = 1;
  for (size_t l = 0; l < levels.size(); ++l) {
    Numbers& at = numbers[levels.size() - 1 - l];
    at.below = below;
    at.member.assign(static_cast<size_t>(devices / below), -1);
    below *= levels[l].count;
    at.met.assign(static_cast<size_t>(devices / below), 0);
  }
  Ranks renamed = ranks;
  for (std::vector<int64_t>& stage : renamed) {
    for (int64_t& rank : stage) {
      int64_t name = 0;
      size_t group = 0;
      for (Numbers& at : numbers) {
        const auto member = static_cast<size_t>(rank / at.below);
        if (at.member[member] < 0) at.member[member] = at.met[group]++;
        name += at.member[member] * at.below;
        group = member;
      }
      rank = name;
    }
  }
  return renamed;
}

std::vector<Ranks> layouts(const std::vector<int64_t>& replicas, const std::vector<TopologyLevel>& levels) {
  std::vector<Ranks> found;
  std::vector<Ranks> alike;
  const auto add = [&](const Ranks& ranks) {
    if (ranks.empty()) return;
    Ranks named = in_order_met(ranks, levels);
    if (std::find(alike.begin(), alike.end(), named) != alike.end()) return;
    alike.push_back(std::move(named));
    found.push_back(ranks);
  };
  std::vector<size_t> order(replicas.size());
  std::iota(order.begin(), order.end(), size_t{0});
  add(in_a_row(replicas, order));
  if (levels.size() < 2) return found;
  std::reverse(order.begin(), order.end());
  add(in_a_row(replicas, order));
  int64_t group = 1;
  for (size_t level = 0; level + 1 < levels.size(); ++level) {
    group *= levels[level].count;
    add(in_a_row(replicas, packed(replicas, group)));
    add(paired(replicas, group));
    add_runs(replicas, group, add);
  }
  for (size_t at = 0, end = found.size(); at < end; ++at) add(spread(found[at], group));
  return found;
}

}  // namespace pipewright

#include "optimizer/plan/neighbours.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "optimizer/cost/stage_memory.h"

namespace pipewright {
namespace {

/// Of a shape.
class Moves {
 public:
  Moves(const Problem& q, Shape from) : q_(q), from_(std::move(from)) {
    left_ = q.devices - std::accumulate(from_.replicas.begin(), from_.replicas.end(), int64_t{0});
    for (const int64_t count : from_.replicas) unit_ = std::gcd(unit_, count);
  }

  std::vector<Shape> all() {
    add(from_.cuts, from_.replicas);
    const size_t stages = from_.replicas.size();
    for (size_t s = 0; s < stages; ++s) {
      change_replicas(s);
      if (s + 1 < stages) {
        move_cut(s + 1);
        if (q_.states->nested && s + 2 < stages) shift(s + 1);
        join(s);
      }
      split(s);
    }
    add_ends();
    return std::move(found_);
  }

 private:
  void add(const std::vector<int>& cuts, const std::vector<int64_t>& replicas) {
    found_.push_back({cuts, replicas});
  }

  void change_replicas(size_t s) {
    const std::vector<int64_t>& replicas = from_.replicas;
    std::vector<int64_t> changed = replicas;
    for (const int64_t more : {int64_t{1}, left_}) {
      if (more < 1 || more > left_) continue;
      changed[s] = replicas[s] + more;
      add(from_.cuts, changed);
    }
    changed = replicas;
    if (replicas[s] == 1) return;
    --changed[s];
    add(from_.cuts, changed);
    for (size_t to = 0; to < replicas.size(); ++to) {
      if (to == s) continue;
      for (const int64_t moved : std::set<int64_t>{1, unit_, replicas[s] / 2}) {
        if (moved < 1 || moved >= replicas[s]) continue;
        changed = replicas;
        changed[s] -= moved;
        changed[to] += moved;
        add(from_.cuts, changed);
      }
    }
  }

  /// Cuts beside the one before stage `s`.
  void move_cut(size_t s) {
    const std::vector<int>& cuts = from_.cuts;
    const std::vector<int64_t>& replicas = from_.replicas;
    for (const int cut : between(cuts[s - 1], cuts[s + 1], cuts[s])) {
      std::vector<int> moved = cuts;
      moved[s] = cut;
      add(moved, replicas);
      // Devices move along with the work.
      const size_t gains = cut > cuts[s] ? s - 1 : s;
      const size_t loses = cut > cuts[s] ? s : s - 1;
      for (const int64_t along : std::set<int64_t>{1, unit_}) {
        if (replicas[loses] <= along) continue;
        std::vector<int64_t> changed = replicas;
        changed[gains] += along;
        changed[loses] -= along;
        add(moved, changed);
      }
    }
  }

  /// Two cuts beside each other the same way, each to one that crosses as little.
  void shift(size_t s) {
    const std::vector<int>& cuts = from_.cuts;
    for (const std::ptrdiff_t way : {-1, 1}) {
      const std::vector<int> first = cheap_beside(cuts[s - 1], cuts[s + 2], cuts[s], way);
      const std::vector<int> second = cheap_beside(cuts[s - 1], cuts[s + 2], cuts[s + 1], way);
      for (size_t k = 0; k < std::min(first.size(), second.size()); ++k) {
        std::vector<int> moved = cuts;
        moved[s] = first[k];
        moved[s + 1] = second[k];
        if (moved[s] < moved[s + 1]) add(moved, from_.replicas);
      }
    }
  }

  /// A stage more at either end, whose devices all others give in proportion: where stages stand in groups
  /// alike, some groups for a stage of their own.
  void add_ends() {
    const std::vector<int64_t>& replicas = from_.replicas;
    const int64_t devices = std::accumulate(replicas.begin(), replicas.end(), int64_t{0});
    for (int64_t given = 1; given < devices; ++given) {
      if (std::any_of(replicas.begin(), replicas.end(),
                      [&](int64_t count) { return count * given % devices != 0; }))
        continue;
      std::vector<int64_t> fewer = replicas;
      for (int64_t& count : fewer) count -= count * given / devices;
      const double all = work_before(*q_.states, q_.states->last());
      const double part = all * static_cast<double>(given) / static_cast<double>(devices);
      for (const bool front : {true, false}) {
        std::vector<int64_t> parts = fewer;
        parts.insert(front ? parts.begin() : parts.end(), given);
        // All cuts move along, with what they cut off of the rest.
        for (const bool cheapest : {false, true}) {
          std::vector<int> cuts = {0};
          const auto add_cut = [&](double work) {
            if (cuts.back() < 0) return;
            const std::vector<int> near = all_between(cuts.back(), q_.states->last());
            cuts.push_back(near.empty() ? -1 : nearest(near, work, cheapest));
          };
          if (front) add_cut(part);
          for (size_t s = 1; s + 1 < from_.cuts.size(); ++s)
            add_cut((front ? part : 0) + work_before(*q_.states, from_.cuts[s]) * (1 - part / all));
          if (!front) add_cut(all - part);
          if (cuts.back() < 0) continue;
          cuts.push_back(q_.states->last());
          add(cuts, parts);
        }
      }
    }
  }

  void join(size_t s) {
    std::vector<int> fewer = from_.cuts;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    std::vector<int64_t> joined = from_.replicas;
    joined.erase(joined.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    const int64_t all = from_.replicas[s] + from_.replicas[s + 1];
    for (const int64_t more : {0, -1, 1}) {
      if (more > left_) continue;
      joined[s] = all + more;
      add(fewer, joined);
    }
  }

  void split(size_t s) {
    const std::vector<int>& cuts = from_.cuts;
    const std::vector<int64_t>& replicas = from_.replicas;
    const int64_t most = replicas[s] + std::min<int64_t>(left_, 1);
    if (most < 2) return;
    const double begin = work_before(*q_.states, cuts[s]);
    const double all = work_before(*q_.states, cuts[s + 1]) - begin;
    std::set<int64_t> counts = {std::max<int64_t>(2, replicas[s]), most};
    if (left_ >= replicas[s]) counts.insert(2 * replicas[s]);  // as many again
    if (left_ > 0) counts.insert(replicas[s] + left_);
    for (const int64_t devices : counts) {
      const std::set<int64_t> firsts = {1, devices / 2, devices - 1};
      for (const int64_t first : firsts) {
        if (first < 1 || first >= devices) continue;
        const double wanted = begin + all * static_cast<double>(first) / static_cast<double>(devices);
        for (const int cut : cuts_near(cuts[s], cuts[s + 1], wanted)) {
          std::vector<int> more = cuts;
          more.insert(more.begin() + static_cast<std::ptrdiff_t>(s) + 1, cut);
          std::vector<int64_t> parts = replicas;
          parts[s] = first;
          parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(s) + 1, devices - first);
          add(more, parts);
        }
      }
    }
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

  /// Some of the cuts between two, near a third: along a chain those beside it; otherwise those that have
  /// fewest nodes less or more, and those after which about as much is done.
  std::vector<int> between(int from, int to, int near) const {
    std::vector<int> cuts = all_between(from, to);
    std::vector<int> some;
    if (!q_.states->nested) {
      std::erase(cuts, near);
      const NodeSet& here = q_.states->states[static_cast<size_t>(near)].done;
      const double work = work_before(*q_.states, near);
      std::vector<std::pair<double, int>> by_nodes, by_work;
      for (const int cut : cuts) {
        const double off = std::abs(work_before(*q_.states, cut) - work);
        by_work.emplace_back(off, cut);
        const auto nodes = (q_.states->states[static_cast<size_t>(cut)].done ^ here).count();
        by_nodes.emplace_back(static_cast<double>(nodes), cut);
      }
      std::set<int> chosen;
      for (auto* ranked : {&by_nodes, &by_work}) {
        std::sort(ranked->begin(), ranked->end());
        for (size_t i = 0; i < std::min(kBeside, ranked->size()); ++i) chosen.insert((*ranked)[i].second);
      }
      return {chosen.begin(), chosen.end()};
    }
    const auto size = static_cast<std::ptrdiff_t>(cuts.size());
    const std::ptrdiff_t at = std::lower_bound(cuts.begin(), cuts.end(), near) - cuts.begin();
    std::set<int> chosen;
    for (const std::ptrdiff_t way : {-1, 1}) {
      for (const std::ptrdiff_t step : {1, 2, 3, 4, 6, 8, 12, 16, 24})
        if (at + way * step >= 0 && at + way * step < size) chosen.insert(cuts[at + way * step]);
      for (const int cut : cheap_beside(from, to, near, way)) chosen.insert(cut);
    }
    chosen.erase(near);
    some.assign(chosen.begin(), chosen.end());
    return some;
  }

  /// Along a chain, the next cuts that cross as little as one, or less: the ends of blocks.
  std::vector<int> cheap_beside(int from, int to, int near, std::ptrdiff_t way) const {
    const std::vector<int> cuts = all_between(from, to);
    const auto bytes = [&](int cut) { return q_.states->states[static_cast<size_t>(cut)].cut_bytes; };
    std::vector<int> cheap;
    const std::ptrdiff_t at = std::lower_bound(cuts.begin(), cuts.end(), near) - cuts.begin();
    for (std::ptrdiff_t i = at + way; i >= 0 && i < std::ssize(cuts) && cheap.size() < kCheap; i += way)
      if (bytes(cuts[i]) <= bytes(near)) cheap.push_back(cuts[i]);
    return cheap;
  }

  static constexpr size_t kBeside = 12;
  static constexpr size_t kCheap = 3;
  static constexpr std::ptrdiff_t kAround = 8;

  /// Of the cuts the one where so much work is done, or the cheapest around it.
  int nearest(const std::vector<int>& cuts, double wanted, bool cheapest) const {
    const auto off = [&](std::ptrdiff_t i) { return std::abs(work_before(*q_.states, cuts[i]) - wanted); };
    const auto size = static_cast<std::ptrdiff_t>(cuts.size());
    std::ptrdiff_t at = 0;
    for (std::ptrdiff_t i = 1; i < size; ++i)
      if (off(i) < off(at)) at = i;
    if (!cheapest) return cuts[at];
    const auto bytes = [&](std::ptrdiff_t k) {
      return q_.states->states[static_cast<size_t>(cuts[k])].cut_bytes;
    };
    std::ptrdiff_t best = at;
    for (std::ptrdiff_t i = std::max<std::ptrdiff_t>(0, at - kAround); i <= std::min(at + kAround, size - 1);
         ++i)
      if (bytes(i) < bytes(best)) best = i;
    return cuts[best];
  }

  /// The cut where so much work is done, two beside it and the cheapest around.
  std::vector<int> cuts_near(int from, int to, double wanted) const {
    const std::vector<int> cuts = all_between(from, to);
    if (cuts.size() <= 6) return cuts;
    std::set<int> some = {nearest(cuts, wanted, true)};
    const auto at = std::find(cuts.begin(), cuts.end(), nearest(cuts, wanted, false)) - cuts.begin();
    for (std::ptrdiff_t i = std::max<std::ptrdiff_t>(0, at - 1);
         i <= std::min(at + 1, static_cast<std::ptrdiff_t>(cuts.size()) - 1); ++i)
      some.insert(cuts[i]);
    return {some.begin(), some.end()};
  }

  const Problem& q_;
  const Shape from_;
  int64_t left_ = 0;
  int64_t unit_ = 0;  // what all numbers of replicas are multiples of: groups that run the same keep doing so
  std::vector<Shape> found_;
};

/// A device of one stage swapped for one of another: of another kind, or in another group.
std::vector<Ranks> swapped(const Ranks& ranks, const CostInputs& inputs, const std::vector<int64_t>& kinds) {
  std::vector<Ranks> found;
  std::vector<int64_t> groups;  // devices of each
  int64_t group = 1;
  for (size_t level = 0; level + 1 < inputs.levels.size(); ++level)
    groups.push_back(group *= inputs.levels[level].count);
  // What a swap is: who stands where afterwards, by group and kind.
  const auto place_of = [&](int64_t rank) {
    std::vector<int64_t> place;
    for (const int64_t size : groups) place.push_back(rank / size);
    place.push_back(kinds[static_cast<size_t>(rank)]);
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
std::vector<Ranks> handed_over(const Ranks& ranks, const std::vector<int64_t>& kinds) {
  std::vector<Ranks> found;
  for (size_t a = 0; a < ranks.size(); ++a) {
    if (ranks[a].size() < 2) continue;
    for (size_t p = 0; p < ranks[a].size(); ++p) {
      const auto kind = [&](int64_t rank) { return kinds[static_cast<size_t>(rank)]; };
      const auto alike = [&](int64_t rank) { return kind(rank) == kind(ranks[a][p]); };
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
Ranks most_to_most(const Problem& q, const Chain& chain, bool memory) {
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

std::vector<int64_t> kinds_of(const CostInputs& inputs, int64_t devices) {
  std::vector<int64_t> kinds;
  for (int64_t device = 0; device < devices; ++device) {
    int64_t kind = 0;
    while (!inputs.same_kind(kind, device)) ++kind;
    kinds.push_back(kind);
  }
  return kinds;
}

double least_seconds(const Problem& q, const Shape& shape) {
  const double fastest =
      q.inputs.paces.empty() ? 1 : *std::max_element(q.inputs.paces.begin(), q.inputs.paces.end());
  double least = 0;
  for (size_t s = 0; s < shape.replicas.size(); ++s) {
    const double work = least_between(*q.states, shape.cuts[s], shape.cuts[s + 1]);
    least = std::max(least, work / static_cast<double>(shape.replicas[s]) / fastest);
  }
  return least;
}

std::vector<Chain> chains_of(const Problem& q, const Shape& shape) {
  const Chain chain = chain_of(shape);
  if (!chain.allowed_by(q)) return {};
  if (!q.inputs.placed()) return {chain};
  std::vector<Chain> all;
  const std::vector<TopologyLevel>& levels = q.inputs.levels;
  std::vector<Ranks> ways = layouts(shape.replicas, levels);
  if (levels.size() < 2 && !q.inputs.speeds.empty()) {
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

std::vector<Shape> shapes_beside(const Problem& q, const Chain& from) {
  return Moves(q, shape_of(from.stages)).all();
}

Chain placed_like(const Shape& shape, const Chain& from) {
  Chain chain = chain_of(shape);
  return from.stages[0].ranks.empty() ? chain : chain.placed_on(dealt_out(from.ranks(), shape.replicas));
}

std::vector<Chain> with_devices_moved(const Problem& q, const Chain& from) {
  std::vector<Chain> found;
  if (!q.inputs.placed()) return found;
  const auto add = [&](const std::vector<Ranks>& ways) {
    for (const Ranks& ranks : ways) {
      Chain chain = from.placed_on(ranks);
      for (FoundStage& stage : chain.stages) {
        stage.replicas = static_cast<int64_t>(stage.ranks.size());
        stage.shares.clear();  // other devices have others
      }
      if (chain.allowed_by(q)) found.push_back(std::move(chain));
    }
  };
  const std::vector<int64_t> kinds = kinds_of(q.inputs, q.devices);
  add(swapped(from.ranks(), q.inputs, kinds));
  add(handed_over(from.ranks(), kinds));
  return found;
}

}  // namespace pipewright

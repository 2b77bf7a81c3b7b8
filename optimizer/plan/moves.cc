#include "optimizer/plan/moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace pipewright {
namespace {

class Moves {
 public:
  Moves(const Question& q, const Shape& from) : q_(q), from_(from) {
    left_ = q.devices - std::accumulate(from.replicas.begin(), from.replicas.end(), int64_t{0});
  }

  std::vector<Shape> all() {
    add(from_.cuts, from_.replicas);
    const size_t stages = from_.replicas.size();
    for (size_t s = 0; s < stages; ++s) {
      change_replicas(s);
      if (s + 1 < stages) {
        move_cut(s + 1);
        join(s);
      }
      split(s);
    }
    return std::move(found_);
  }

  std::vector<Shape> joined(size_t s) {
    join(s);
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
      for (const int64_t moved : {int64_t{1}, replicas[s] / 2}) {
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
      // A device moves along with the work.
      const size_t gains = cut > cuts[s] ? s - 1 : s;
      const size_t loses = cut > cuts[s] ? s : s - 1;
      if (replicas[loses] < 2) continue;
      std::vector<int64_t> changed = replicas;
      ++changed[gains];
      --changed[loses];
      add(moved, changed);
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
    const auto off = [&](std::ptrdiff_t i) { return std::abs(work_before(*q_.states, cuts[i]) - wanted); };
    std::ptrdiff_t at = 0;
    for (std::ptrdiff_t i = 1; i < static_cast<std::ptrdiff_t>(cuts.size()); ++i)
      if (off(i) < off(at)) at = i;
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

  const Question& q_;
  const Shape& from_;
  int64_t left_ = 0;
  std::vector<Shape> found_;
};

}  // namespace

std::vector<Shape> neighbours(const Question& question, const Shape& from) {
  return Moves(question, from).all();
}

std::vector<Shape> joined_at(const Question& question, const Shape& from, size_t s) {
  return Moves(question, from).joined(s);
}

std::vector<Ranks> swapped(const Ranks& ranks, const std::vector<TopologyLevel>& levels) {
  std::vector<Ranks> found;
  int64_t group = 1;
  for (size_t level = 0; level + 1 < levels.size(); ++level) {
    group *= levels[level].count;
    for (size_t a = 0; a < ranks.size(); ++a) {
      for (size_t b = a + 1; b < ranks.size(); ++b) {
        std::set<std::pair<int64_t, int64_t>> tried;
        for (size_t p = 0; p < ranks[a].size(); ++p) {
          for (size_t r = 0; r < ranks[b].size(); ++r) {
            const int64_t ours = ranks[a][p] / group;
            const int64_t theirs = ranks[b][r] / group;
            if (ours == theirs || !tried.emplace(ours, theirs).second) continue;
            Ranks other = ranks;
            std::swap(other[a][p], other[b][r]);
            found.push_back(std::move(other));
          }
        }
      }
    }
  }
  return found;
}

}  // namespace pipewright

#include "optimizer/search/bound.h"

#include <algorithm>
#include <set>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr int kMostCells = 3000;
constexpr size_t kMostOfCell = 40;
constexpr double kBoundRounding = 1e-9;

/// A stage from the best of one cell to the best of another.
StageLoad load_between(const Cell& from, const Cell& to, bool first, bool last) {
  StageLoad load;
  load.forward_seconds = std::max(0.0, to.compute_low - from.compute_high);
  load.trainable_bytes = std::max<int64_t>(0, to.trainable_low - from.trainable_high);
  load.in_bytes = from.cut_low;
  load.out_bytes = to.cut_low;
  load.first = first;
  load.last = last;
  load.frozen = to.trainable_high == 0;  // it may be
  return load;
}

class Relaxed {
 public:
  Relaxed(const Cells& cells, const Problem& problem) : cells_(cells), q_(problem) {}

  /// Cells between the ends along a way of that period; nothing: no plan has it.
  std::optional<std::vector<int>> way(double period) const {
    const int count = static_cast<int>(cells_.size());
    const int64_t none = q_.devices + 1;
    std::vector<int64_t> fewest(count, none);
    std::vector<int> next(count, -1);
    fewest[count - 1] = 0;
    for (int i = count - 2; i >= 0; --i) {
      const double done = cells_[i].compute_high * (1 + kBoundRounding);
      for (int j = count - 1; j > i; --j) {
        // One device less than what is known already, or it is no use.
        const int64_t room = fewest[i] - 1 - fewest[j];
        if (room <= 0 || cells_[j].compute_low - done > static_cast<double>(room) * period) continue;
        if (cells_[j].trainable_high < cells_[i].trainable_low) continue;  // no cut of j holds one of i
        const StageLoad load = load_between(cells_[i], cells_[j], i == 0, j == count - 1);
        const int64_t replicas = fewest_replicas(load, std::min(room, q_.most_replicas), period);
        if (replicas == 0) continue;
        fewest[i] = fewest[j] + replicas;
        next[i] = j;
      }
    }
    if (fewest[0] > q_.devices) return std::nullopt;
    std::vector<int> cells;
    for (int i = next[0]; i != count - 1; i = next[i]) cells.push_back(i);
    return cells;
  }

 private:
  bool within(const StageLoad& load, int64_t replicas, double period) const {
    return stage_period(load, replicas, q_.inputs).total_seconds() <= period * (1 + kBoundRounding);
  }
  /// 0: none up to `most`.
  int64_t fewest_replicas(const StageLoad& load, int64_t most, double period) const {
    if (within(load, 1, period)) return 1;
    if (most < 2 || !within(load, most, period)) return 0;
    int64_t least = std::max<int64_t>(2, static_cast<int64_t>(load.compute_seconds() / period));
    least = std::min(least, most);
    while (least < most) {
      const int64_t middle = least + (most - least) / 2;
      if (within(load, middle, period)) {
        most = middle;
      } else {
        least = middle + 1;
      }
    }
    return most;
  }

  const Cells& cells_;
  const Problem& q_;
};

/// Some of the sets of a cell, those first that carry least over.
std::vector<int> best_of(const std::vector<int>& cell_of_set, int cell) {
  std::vector<int> sets;
  for (size_t i = 0; i < cell_of_set.size(); ++i) {
    if (cell_of_set[i] == cell) sets.push_back(static_cast<int>(i));
  }
  // Every so many, if there are more: those next to each other in the list are alike.
  const size_t step = (sets.size() + kMostOfCell - 1) / kMostOfCell;
  for (size_t k = 0; k * step < sets.size(); ++k) sets[k] = sets[k * step];
  sets.resize(step == 0 ? 0 : (sets.size() + step - 1) / step);
  return sets;
}

}  // namespace

Bounds::Bounds(const Dataflow& flow, const Contraction& graph, const Problem& problem, int64_t most_down_sets)
    : flow_(flow), graph_(graph), problem_(problem), sets_(all_down_sets(graph, most_down_sets)) {
  cells_ = sets_ ? cells_of(flow, graph, *sets_, kMostCells, &cell_of_set_)
                 : cells_around(flow, graph, kMostCells);
}

Bound Bounds::of(double achieved_seconds) const {
  Bound bound;
  const Relaxed relaxed(cells_, problem_);
  double low = 0;
  for (const ProfiledNode& node : flow_.profile.nodes) low += node.compute_seconds();
  low = std::min(achieved_seconds, low / static_cast<double>(problem_.devices));
  double high = achieved_seconds;
  std::set<int> passed;
  // First just below what was achieved: where the plan is as good as it can be, that is all.
  for (double next = high * (1 - 1e-3); next > low; next = low + (high - low) / 2) {
    const std::optional<std::vector<int>> way = relaxed.way(next);
    (way ? high : low) = next;
    if (way) passed.insert(way->begin(), way->end());
    if (high - low < 2e-4 * high) break;
  }
  bound.period_seconds = low * (1 - kBoundRounding);
  if (sets_) bound.down_sets = sets_->size();
  for (const int cell : passed) {
    bound.places_seconds.push_back((cells_[cell].compute_low + cells_[cell].compute_high) / 2);
    if (!sets_) continue;
    for (const int set : best_of(cell_of_set_, cell)) {
      bound.cuts.push_back(nodes_of(graph_, sets_->as_bits(set, graph_.size())));
    }
  }
  return bound;
}

}  // namespace pipewright

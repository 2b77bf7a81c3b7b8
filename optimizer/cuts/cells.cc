#include "optimizer/cuts/cells.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "optimizer/cuts/min_cut.h"

namespace pipewright {
namespace {

constexpr double kRounding = 1e-12;
constexpr int kFlows = 256;  // parts of the seconds, for each of which a flow is worked out
constexpr int64_t kTicks = int64_t{1} << 50;

/// What a group brings, and the values that pass between groups.
struct Weights {
  Weights(const Dataflow& flow, const Contraction& graph)
      : compute(graph.size(), 0), trainable(graph.size(), 0), made(graph.size()), read(graph.size()) {
    for (int v = 0; v < flow.size(); ++v) {
      const int g = graph.group_of[v];
      const ProfiledNode& node = flow.profile.nodes[v];
      compute[g] += node.compute_seconds();
      trainable[g] += flow.trainable_bytes[v];
    }
    for (const DataflowValue& value : flow.values) {
      const int producer = graph.group_of[value.producer];
      std::vector<int> readers;
      for (const int reader : value.readers) readers.push_back(graph.group_of[reader]);
      std::sort(readers.begin(), readers.end());
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
      readers.erase(std::remove(readers.begin(), readers.end(), producer), readers.end());
      if (readers.empty() || value.bytes == 0) continue;
      made[producer].push_back(static_cast<int>(values.size()));
      for (const int reader : readers) read[reader].push_back(static_cast<int>(values.size()));
      values.push_back({value.bytes, producer, std::move(readers)});
    }
  }

  std::vector<double> compute;
  std::vector<int64_t> trainable;
  std::vector<DataflowValue> values;   // between groups, by number of the group
  std::vector<std::vector<int>> made;  // by group: indices of `values`
  std::vector<std::vector<int>> read;

  double all_compute() const { return std::accumulate(compute.begin(), compute.end(), 0.0); }
  int64_t all_trainable() const { return std::accumulate(trainable.begin(), trainable.end(), int64_t{0}); }
};

struct Sum {
  int64_t ticks = 0;  // compute in whole parts of kTicks: a larger set never has fewer, whatever the order
  int nodes = 0;
  double compute = 0;
  int64_t trainable = 0;
  int64_t cut = 0;
};

std::vector<Sum> sums_of(const Weights& weights, const DownSets& sets) {
  const double all = weights.all_compute();
  std::vector<int64_t> ticks;
  for (const double seconds : weights.compute) {
    ticks.push_back(all > 0 ? std::llround(seconds / all * static_cast<double>(kTicks)) : 0);
  }
  std::vector<Sum> sums(sets.size());
  for (int i = 1; i < sets.size(); ++i) {
    const int g = sets.added[i];
    Sum sum = sums[sets.parent[i]];
    sum.ticks += ticks[g];
    ++sum.nodes;
    sum.compute += weights.compute[g];
    sum.trainable += weights.trainable[g];
    const auto all_there = [&](int number) {
      const std::vector<int>& readers = weights.values[number].readers;
      return std::all_of(readers.begin(), readers.end(), [&](int r) { return sets.test(i, r); });
    };
    for (const int number : weights.made[g]) sum.cut += weights.values[number].bytes;
    for (const int number : weights.read[g]) {
      if (all_there(number)) sum.cut -= weights.values[number].bytes;
    }
    sums[i] = sum;
  }
  return sums;
}

Cell cell_of(const Sum& sum) {
  Cell cell;
  cell.compute_low = cell.compute_high = sum.compute;
  cell.trainable_low = cell.trainable_high = sum.trainable;
  cell.cut_low = sum.cut;
  return cell;
}

void widen(Cell* cell, const Sum& sum) {
  cell->compute_low = std::min(cell->compute_low, sum.compute);
  cell->compute_high = std::max(cell->compute_high, sum.compute);
  cell->trainable_low = std::min(cell->trainable_low, sum.trainable);
  cell->trainable_high = std::max(cell->trainable_high, sum.trainable);
  cell->cut_low = std::min(cell->cut_low, sum.cut);
}

/// All that comes before each group, or after it, itself included, in seconds.
std::vector<double> reach_seconds(const std::vector<std::vector<int>>& before, const Weights& weights,
                                  bool forward) {
  const auto groups = static_cast<int>(before.size());
  std::vector<NodeSet> sets(groups, NodeSet(groups));
  std::vector<double> seconds(groups, 0);
  for (int k = 0; k < groups; ++k) {
    const int g = forward ? k : groups - 1 - k;
    sets[g].set(g);
    for (const int p : before[g]) sets[g] |= sets[p];
    for (size_t a = sets[g].find_first(); a != NodeSet::npos; a = sets[g].find_next(a))
      seconds[g] += weights.compute[a];
  }
  return seconds;
}

struct Item {
  double seconds = 0;
  double bytes = 0;
};

/// The most bytes that items of at most `seconds` together can have, or the least that at least so many
/// seconds bring, if parts of items could be taken: in the order of bytes for a second.
double filled_up(std::vector<Item> items, double seconds, bool most) {
  std::sort(items.begin(), items.end(), [most](const Item& a, const Item& b) {
    const double left = a.bytes * b.seconds;
    const double right = b.bytes * a.seconds;
    return most ? left > right : left < right;
  });
  double bytes = 0;
  for (const Item& item : items) {
    if (!most && seconds <= 0) return bytes;
    if (item.seconds > seconds) return seconds > 0 ? bytes + item.bytes * seconds / item.seconds : bytes;
    seconds -= item.seconds;
    bytes += item.bytes;
  }
  return bytes;
}

/// What is known of cuts by the seconds that they have done.
class Surroundings {
 public:
  Surroundings(const Weights& weights, const Contraction& graph)
      : weights_(weights),
        graph_(graph),
        all_(weights.all_compute()),
        until_(reach_seconds(graph.previous, weights, true)),
        from_(reach_seconds(graph.next, weights, false)) {}

  /// Least bytes that cross after cuts with low..high seconds.
  int64_t cut_bytes(double low, double high) const {
    std::vector<char> sure;
    std::vector<char> possible;
    for (int g = 0; g < graph_.size(); ++g) {
      sure.push_back(is_sure(g, low));
      possible.push_back(is_possible(g, high));
    }
    return least_cut_bytes(graph_, weights_.values, sure, possible);
  }

  /// Of cuts with low..high seconds, but for what crosses.
  Cell at(double low, double high) const {
    double sure_seconds = 0;
    Cell cell;
    cell.compute_low = low;
    cell.compute_high = high;
    std::vector<Item> trainable;
    for (int g = 0; g < graph_.size(); ++g) {
      if (is_sure(g, low)) {
        sure_seconds += weights_.compute[g];
        cell.trainable_low += weights_.trainable[g];
      } else if (is_possible(g, high)) {
        add(&trainable, g, weights_.trainable);
      }
    }
    cell.trainable_high = cell.trainable_low;
    extend(trainable, low - sure_seconds, high - sure_seconds, &cell.trainable_low, &cell.trainable_high);
    return cell;
  }

 private:
  bool is_possible(int group, double high) const { return until_[group] <= high + kRounding * all_; }
  bool is_sure(int group, double low) const { return all_ - from_[group] < low - kRounding * all_; }
  void add(std::vector<Item>* items, int group, const std::vector<int64_t>& bytes) const {
    if (bytes[group] == 0 && weights_.compute[group] == 0) return;
    items->push_back({weights_.compute[group], static_cast<double>(bytes[group])});
  }
  void extend(const std::vector<Item>& items, double low, double high, int64_t* least, int64_t* most) const {
    const double rounding = kRounding * all_;
    *least += static_cast<int64_t>(std::floor(filled_up(items, low - rounding, false)));
    *most += static_cast<int64_t>(std::ceil(filled_up(items, high + rounding, true)));
  }

  const Weights& weights_;
  const Contraction& graph_;
  double all_;
  std::vector<double> until_;  // by group: seconds of all that comes before it, and of itself
  std::vector<double> from_;   // after it
};

Cell whole_of(const Weights& weights) {
  Sum sum;
  sum.compute = weights.all_compute();
  sum.trainable = weights.all_trainable();
  return cell_of(sum);
}

}  // namespace

Cells cells_of(const Dataflow& flow, const Contraction& graph, const DownSets& sets, int most,
               std::vector<int>* cell_of_set) {
  const Weights weights(flow, graph);
  const std::vector<Sum> sums = sums_of(weights, sets);
  const double all_trainable = std::max(1.0, static_cast<double>(weights.all_trainable()));
  using Key = std::pair<int64_t, int64_t>;  // part of the seconds, of the weights
  for (int64_t parts = 4096;; parts = parts * 3 / 4) {
    const auto key_of = [&](const Sum& sum) {
      if (sum.nodes == 0) return Key(-1, 0);
      if (sum.nodes == graph.size()) return Key(parts + 1, 0);
      const double bytes = static_cast<double>(sum.trainable) / all_trainable;
      return Key(sum.ticks / (kTicks / parts), std::llround(bytes * static_cast<double>(parts) / 4));
    };
    std::map<Key, Cell> cells;
    for (const Sum& sum : sums) {
      const auto [at, fresh] = cells.emplace(key_of(sum), cell_of(sum));
      if (!fresh) widen(&at->second, sum);
    }
    if (static_cast<int>(cells.size()) > most && parts > 8) continue;
    Cells result;
    std::map<Key, int> number;
    for (const auto& [key, cell] : cells) {
      number[key] = static_cast<int>(result.size());
      result.push_back(cell);
    }
    cell_of_set->clear();
    for (const Sum& sum : sums) cell_of_set->push_back(number.at(key_of(sum)));
    return result;
  }
}

Cells cells_around(const Dataflow& flow, const Contraction& graph, int most) {
  const Weights weights(flow, graph);
  const Surroundings surroundings(weights, graph);
  const double all = weights.all_compute();
  std::vector<int64_t> cut_bytes;
  for (int k = 0; k < kFlows; ++k) {
    cut_bytes.push_back(surroundings.cut_bytes(all * k / kFlows, all * (k + 1) / kFlows));
  }
  for (int parts = 2048;; parts /= 2) {
    const int64_t step = std::max<int64_t>(1, weights.all_trainable() / (parts / 4));
    Cells cells = {Cell()};
    for (int k = 0; k < parts; ++k) {
      Cell any = surroundings.at(all * k / parts, all * (k + 1) / parts);
      any.cut_low = cut_bytes[k * kFlows / parts];
      // Parts are powers of two; where these are the coarser ones, the least of the finer.
      for (int fine = k * kFlows / parts; fine < (k + 1) * kFlows / parts; ++fine)
        any.cut_low = std::min(any.cut_low, cut_bytes[fine]);
      for (int64_t low = any.trainable_low; low <= any.trainable_high; low += step) {
        Cell cell = any;
        cell.trainable_low = low;
        cell.trainable_high = std::min(any.trainable_high, low + step);
        cells.push_back(cell);
      }
    }
    cells.push_back(whole_of(weights));
    if (static_cast<int>(cells.size()) <= most || parts <= 8) return cells;
  }
}

}  // namespace pipewright

#include "optimizer/baselines/piper.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "optimizer/cuts/contraction.h"
#include "optimizer/cuts/down_sets.h"
#include "optimizer/cuts/orders.h"

namespace pipewright {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kAnyTime = 1e30;
constexpr int64_t kMostCuts = 3000;
constexpr double kProof = 1e-9;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A node in a stage, on a number of tensor-parallel devices.
struct Choice {
  double seconds = 0;  // with its transfers: shared out over the copies
  double parameter_bytes = 0;
  double each_bytes = 0;
  double fixed_bytes = 0;
};
struct Item {
  int node = 0;
  std::vector<Choice> choices;
};

/// The exchange of gradients, for a sample.
double sync_seconds(double parameter_bytes, int64_t copies, const PiperProblem& problem) {
  const auto d = static_cast<double>(copies);
  return 4 * (d - 1) / d * parameter_bytes / static_cast<double>(problem.samples_per_batch) /
         problem.bandwidth_bytes_per_second;
}

double seconds_of(const Choice& choice, int64_t copies, const PiperProblem& problem) {
  return choice.seconds / static_cast<double>(copies) + sync_seconds(choice.parameter_bytes, copies, problem);
}

double bytes_of(const Choice& choice, int64_t under_way) {
  return choice.each_bytes * static_cast<double>(under_way) + choice.fixed_bytes;
}

struct Selection {
  double seconds = kInfinite;
  double bytes = 0;
  std::vector<int> choices;  // by item
};

/// Fastest choices that fit; `parts`: one item may take part of either, which nothing that fits beats.
Selection select(const std::vector<Item>& items, int64_t copies, int64_t under_way, bool parts,
                 const PiperProblem& problem) {
  struct Swap {
    double seconds;
    double bytes;
    int item;
  };
  Selection selection;
  selection.seconds = 0;
  std::vector<Swap> swaps;
  for (size_t k = 0; k < items.size(); ++k) {
    const std::vector<Choice>& choices = items[k].choices;
    int fastest = 0;
    if (choices.size() > 1 &&
        seconds_of(choices[1], copies, problem) < seconds_of(choices[0], copies, problem))
      fastest = 1;
    selection.choices.push_back(fastest);
    selection.seconds += seconds_of(choices[fastest], copies, problem);
    selection.bytes += bytes_of(choices[fastest], under_way);
    if (choices.size() < 2) continue;
    const Choice& other = choices[1 - fastest];
    const double saved = bytes_of(choices[fastest], under_way) - bytes_of(other, under_way);
    if (saved <= 0) continue;
    const double more = seconds_of(other, copies, problem) - seconds_of(choices[fastest], copies, problem);
    swaps.push_back({more, saved, static_cast<int>(k)});
  }
  if (selection.bytes <= problem.memory_bytes) return selection;
  std::sort(swaps.begin(), swaps.end(), [](const Swap& a, const Swap& b) {
    const double left = a.seconds * b.bytes;
    const double right = b.seconds * a.bytes;
    return left != right ? left < right : a.item < b.item;
  });
  size_t taken = 0;
  for (; taken < swaps.size() && selection.bytes > problem.memory_bytes; ++taken) {
    const Swap& swap = swaps[taken];
    const double needed = selection.bytes - problem.memory_bytes;
    selection.choices[swap.item] ^= 1;
    selection.seconds += parts && needed < swap.bytes ? swap.seconds * needed / swap.bytes : swap.seconds;
    selection.bytes -= swap.bytes;
  }
  if (selection.bytes > problem.memory_bytes) {
    selection.seconds = kInfinite;
    return selection;
  }
  if (parts) return selection;
  // The last ones may save more than was missing, so that earlier ones are not needed: the dearest first.
  std::sort(swaps.begin(), swaps.begin() + static_cast<std::ptrdiff_t>(taken),
            [](const Swap& a, const Swap& b) {
              return a.seconds != b.seconds ? a.seconds > b.seconds : a.item < b.item;
            });
  for (size_t k = 0; k < taken; ++k) {
    if (selection.bytes + swaps[k].bytes > problem.memory_bytes) continue;
    selection.choices[swaps[k].item] ^= 1;
    selection.seconds -= swaps[k].seconds;
    selection.bytes += swaps[k].bytes;
  }
  return selection;
}

/// Nodes between two cuts, for one tensor-parallel degree.
std::vector<Item> items_between(const PiperProblem& problem, const NodeSet& stage, int64_t degree) {
  std::vector<Item> items;
  std::vector<int> place(problem.nodes.size(), -1);
  for (size_t v = stage.find_first(); v != NodeSet::npos; v = stage.find_next(v)) {
    const auto found = problem.nodes[v].options.find(degree);
    if (found == problem.nodes[v].options.end()) return {};
    Item item;
    item.node = static_cast<int>(v);
    for (const PiperOption& option : found->second) {
      item.choices.push_back(
          {option.seconds, option.parameter_bytes, option.memory_each_bytes, option.memory_fixed_bytes});
    }
    place[v] = static_cast<int>(items.size());
    items.push_back(std::move(item));
  }
  const auto charge = [&](int node, int other, double bytes, bool from) {
    const std::vector<PiperOption>& options = problem.nodes[node].options.at(degree);
    for (size_t o = 0; o < options.size(); ++o) {
      const double sync = from ? options[o].sync_from_bytes.at(other) : options[o].sync_to_bytes.at(other);
      items[place[node]].choices[o].seconds += 2 * (bytes + sync) / problem.bandwidth_bytes_per_second;
    }
  };
  for (const PiperEdge& edge : problem.edges) {
    const bool from = stage.test(edge.from);
    const bool to = stage.test(edge.to);
    if (to && !from) charge(edge.to, edge.from, edge.bytes, true);
    if (from && !to) charge(edge.from, edge.to, edge.bytes, false);
  }
  return items;
}

class Search {
 public:
  Search(const PiperProblem& problem, std::vector<NodeSet> cuts, bool parts)
      : problem_(problem), parts_(parts), cuts_(std::move(cuts)) {
    std::sort(cuts_.begin(), cuts_.end(), [](const NodeSet& a, const NodeSet& b) {
      return a.count() != b.count() ? a.count() < b.count() : a < b;
    });
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    std::set<int64_t> degrees;
    for (const PiperNode& node : problem.nodes) {
      for (const auto& [degree, options] : node.options) degrees.insert(degree);
    }
    for (int64_t d = 1; d <= most_copies(); ++d) {
      if (problem.samples_per_batch % d == 0) copies_.push_back(d);
    }
    for (int i = 0; i < size(); ++i) {
      for (int j = i + 1; j < size(); ++j) {
        if (!cuts_[i].is_subset_of(cuts_[j])) continue;
        for (const int64_t degree : degrees) {
          if (degree > problem.devices) break;
          Stage stage;
          stage.from = i;
          stage.to = j;
          stage.degree = degree;
          stage.items = items_between(problem, cuts_[j] - cuts_[i], degree);
          if (stage.items.empty()) continue;
          for (const Item& item : stage.items) {
            double least = kInfinite;
            for (const Choice& choice : item.choices) least = std::min(least, choice.seconds);
            stage.least_seconds += least;
          }
          stages_from_.resize(size());
          stages_from_[i].push_back(static_cast<int>(stages_.size()));
          stages_.push_back(std::move(stage));
        }
      }
    }
    stages_from_.resize(size());
  }

  /// A plan of at most `limit` seconds: of each rest of the model, which numbers of devices and of copies
  /// do, neither larger than in another.
  std::optional<PiperPlan> within(double limit) {
    std::vector<std::vector<Rest>> rests(size());
    rests.back().push_back({});
    for (int i = size() - 2; i >= 0; --i) {
      for (const int s : stages_from_[i]) {
        Stage& stage = stages_[s];
        const std::vector<Rest>& after = rests[stage.to];
        for (size_t r = 0; r < after.size(); ++r) {
          const std::optional<int64_t> copies = fewest_copies(&stage, after[r], limit);
          if (!copies) continue;
          Rest rest;
          rest.devices = after[r].devices + *copies * stage.degree;
          rest.copies = after[r].copies + *copies;
          rest.stage = s;
          rest.stage_copies = *copies;
          rest.then = static_cast<int>(r);
          keep(rest, &rests[i]);
        }
      }
    }
    if (rests[0].empty()) return std::nullopt;
    const auto fewer = [](const Rest& a, const Rest& b) { return a.devices < b.devices; };
    const auto best = std::min_element(rests[0].begin(), rests[0].end(), fewer);
    return plan_of(rests, static_cast<int>(best - rests[0].begin()));
  }

 private:
  struct Stage {
    int from = 0;
    int to = 0;
    int64_t degree = 1;
    std::vector<Item> items;
    double least_seconds = 0;
    std::map<std::pair<int64_t, int64_t>, double> seconds;  // by copies and samples under way
  };
  struct Rest {
    int64_t devices = 0;
    int64_t copies = 0;
    int stage = -1;
    int64_t stage_copies = 0;
    int then = -1;  // which of those after the stage
  };

  int size() const { return static_cast<int>(cuts_.size()); }
  int64_t most_copies() const { return std::min(problem_.samples_per_batch, problem_.devices); }

  static void keep(const Rest& rest, std::vector<Rest>* rests) {
    for (const Rest& other : *rests) {
      if (other.devices <= rest.devices && other.copies <= rest.copies) return;
    }
    const auto beaten = [&rest](const Rest& other) {
      return rest.devices <= other.devices && rest.copies <= other.copies;
    };
    rests->erase(std::remove_if(rests->begin(), rests->end(), beaten), rests->end());
    rests->push_back(rest);
  }

  double seconds(Stage* stage, int64_t copies, int64_t under_way) const {
    const auto [at, fresh] = stage->seconds.try_emplace({copies, under_way}, kInfinite);
    if (fresh) at->second = select(stage->items, copies, under_way, parts_, problem_).seconds;
    return at->second;
  }

  std::optional<int64_t> fewest_copies(Stage* stage, const Rest& after, double limit) const {
    const double least = stage->least_seconds / limit * (1 - kProof);
    for (const int64_t copies : copies_) {
      if (static_cast<double>(copies) < least) continue;
      if (after.devices + copies * stage->degree > problem_.devices) return std::nullopt;
      if (after.copies + copies > most_copies()) return std::nullopt;
      if (seconds(stage, copies, divide_up(after.copies + copies, copies)) <= limit) return copies;
    }
    return std::nullopt;
  }

  PiperPlan plan_of(const std::vector<std::vector<Rest>>& rests, int which) const {
    PiperPlan plan;
    for (int i = 0; i + 1 < size();) {
      const Rest& rest = rests[i][which];
      const Stage& from = stages_[rest.stage];
      const int64_t under_way = divide_up(rest.copies, rest.stage_copies);
      const Selection selection = select(from.items, rest.stage_copies, under_way, parts_, problem_);
      PiperStage stage;
      for (const Item& item : from.items) stage.nodes.push_back(item.node);
      stage.data_degree = rest.stage_copies;
      stage.tensor_degree = from.degree;
      stage.options = selection.choices;
      stage.seconds = selection.seconds;
      stage.memory_bytes = selection.bytes;
      plan.seconds = std::max(plan.seconds, stage.seconds);
      plan.stages.push_back(std::move(stage));
      i = from.to;
      which = rest.then;
    }
    return plan;
  }

  const PiperProblem& problem_;
  bool parts_;
  std::vector<NodeSet> cuts_;
  std::vector<int64_t> copies_;
  std::vector<Stage> stages_;
  std::vector<std::vector<int>> stages_from_;
};

/// The best among the cuts.
std::optional<PiperPlan> best_among(const PiperProblem& problem, const std::vector<NodeSet>& cuts,
                                    bool parts) {
  Search search(problem, cuts, parts);
  std::optional<PiperPlan> best = search.within(kAnyTime);
  if (!best) return best;
  double low = 0;
  while (best->seconds - low > 2 * kProof * best->seconds) {
    for (const double limit : {low + (best->seconds - low) / 2, best->seconds * (1 - kProof)}) {
      if (limit <= low || limit >= best->seconds) continue;
      std::optional<PiperPlan> found = search.within(limit);
      if (found) {
        best = std::move(found);
      } else {
        low = limit;
      }
      if (best->seconds - low > 0.02 * best->seconds) break;
    }
  }
  return best;
}

}  // namespace

int64_t PiperPlan::devices() const {
  int64_t sum = 0;
  for (const PiperStage& stage : stages) sum += stage.data_degree * stage.tensor_degree;
  return sum;
}

std::optional<PiperPlan> search_piper(const PiperProblem& problem) {
  std::vector<NodePair> edges;
  for (const PiperEdge& edge : problem.edges) edges.emplace_back(edge.from, edge.to);
  const Contraction graph = contract(static_cast<int>(problem.nodes.size()), edges, {});
  std::vector<NodeSet> cuts;
  const std::optional<DownSets> sets = all_down_sets(graph, kMostCuts);
  for (int i = 0; sets && i < sets->size(); ++i)
    cuts.push_back(nodes_of(graph, sets->as_bits(i, graph.size())));
  if (!sets) cuts = cuts_along(graph, order_of_groups(graph, 0));
  std::optional<PiperPlan> best = best_among(problem, cuts, false);
  if (!best || !sets) return best;
  const std::optional<PiperPlan> bound = best_among(problem, cuts, true);
  best->lower_bound_seconds = std::min(best->seconds, bound->seconds * (1 - 2 * kProof));
  return best;
}

double piper_seconds(const PiperProblem& problem, const PiperPlan& plan) {
  std::vector<int> stage_of(problem.nodes.size(), -1);
  int64_t copies = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    copies += plan.stages[s].data_degree;
    if (problem.samples_per_batch % plan.stages[s].data_degree != 0) return kInfinite;
    for (const int v : plan.stages[s].nodes) {
      if (stage_of[v] >= 0) return kInfinite;
      stage_of[v] = static_cast<int>(s);
    }
  }
  if (std::count(stage_of.begin(), stage_of.end(), -1) > 0) return kInfinite;
  if (copies > problem.samples_per_batch || plan.devices() > problem.devices) return kInfinite;
  double slowest = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const PiperStage& stage = plan.stages[s];
    const auto d = static_cast<double>(stage.data_degree);
    const auto under_way = static_cast<double>(divide_up(copies, stage.data_degree));
    copies -= stage.data_degree;
    double compute = 0;
    double edge_bytes = 0;
    double parameter_bytes = 0;
    double memory = 0;
    for (size_t k = 0; k < stage.nodes.size(); ++k) {
      const PiperOption& option =
          problem.nodes[stage.nodes[k]].options.at(stage.tensor_degree).at(stage.options[k]);
      compute += option.seconds;
      parameter_bytes += option.parameter_bytes;
      memory += option.memory_each_bytes * under_way + option.memory_fixed_bytes;
      for (const PiperEdge& edge : problem.edges) {
        if (stage_of[edge.from] > stage_of[edge.to]) return kInfinite;
        if (stage_of[edge.from] == stage_of[edge.to]) continue;
        if (edge.to == stage.nodes[k]) edge_bytes += 2 * (edge.bytes + option.sync_from_bytes.at(edge.from));
        if (edge.from == stage.nodes[k]) edge_bytes += 2 * (edge.bytes + option.sync_to_bytes.at(edge.to));
      }
    }
    if (memory > problem.memory_bytes * (1 + 1e-12)) return kInfinite;
    const double bytes =
        edge_bytes / d + 4 * (d - 1) / d * parameter_bytes / static_cast<double>(problem.samples_per_batch);
    slowest = std::max(slowest, bytes / problem.bandwidth_bytes_per_second + compute / d);
  }
  return slowest;
}

}  // namespace pipewright

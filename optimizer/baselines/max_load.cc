#include "optimizer/baselines/max_load.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/stage_times.h"
#include "optimizer/cuts/contraction.h"
#include "optimizer/cuts/down_sets.h"
#include "optimizer/cuts/orders.h"

namespace pipewright {
namespace {

constexpr int64_t kMostDownSets = 1000000;
constexpr double kProof = 1e-10;
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kAnyLoad = 1e30;

/// A value, by the groups that make or read it: an accelerator pays if it holds some of them but not all.
struct Net {
  std::vector<int> groups;
  double seconds = 0;
};

/// The problem by groups that stay together.
struct Grouped {
  Contraction graph;                    // of classes of nodes
  std::vector<std::vector<int>> nodes;  // by group
  std::vector<double> accelerator_seconds;
  std::vector<double> cpu_seconds;
  std::vector<double> bytes;
  std::vector<char> accelerator;
  std::vector<Net> nets;
};

/// Classes numbered from 0, by node.
std::vector<int> classes_of(const MaxLoadProblem& problem) {
  std::map<int64_t, int> number;
  std::vector<int> of_node;
  for (const MaxLoadNode& node : problem.nodes) {
    of_node.push_back(number.emplace(node.color, static_cast<int>(number.size())).first->second);
  }
  return of_node;
}

/// The forward pass between classes. A class without a forward node is placed by its backward edges, the
/// other way round.
std::vector<NodePair> forward_edges(const MaxLoadProblem& problem, const std::vector<int>& of_node) {
  std::set<int> with_forward;
  for (size_t v = 0; v < problem.nodes.size(); ++v) {
    if (!problem.nodes[v].backward) with_forward.insert(of_node[v]);
  }
  std::vector<NodePair> edges;
  for (const auto& [from, to] : problem.edges) {
    const int a = of_node[from];
    const int b = of_node[to];
    const bool from_backward = problem.nodes[from].backward;
    const bool to_backward = problem.nodes[to].backward;
    if (!from_backward && !to_backward) edges.emplace_back(a, b);
    if (from_backward && to_backward && (with_forward.count(a) == 0 || with_forward.count(b) == 0))
      edges.emplace_back(b, a);
  }
  return edges;
}

Grouped grouped(const MaxLoadProblem& problem, const Contraction& graph, const std::vector<int>& of_node) {
  Grouped placement;
  placement.graph = graph;
  const int groups = graph.size();
  placement.nodes.resize(groups);
  placement.accelerator_seconds.assign(groups, 0);
  placement.cpu_seconds.assign(groups, 0);
  placement.bytes.assign(groups, 0);
  placement.accelerator.assign(groups, 1);
  std::vector<std::set<int>> touched(problem.nodes.size());
  for (size_t v = 0; v < problem.nodes.size(); ++v) {
    const MaxLoadNode& node = problem.nodes[v];
    const int g = graph.group_of[of_node[v]];
    placement.nodes[g].push_back(static_cast<int>(v));
    placement.accelerator_seconds[g] += node.accelerator_seconds;
    placement.cpu_seconds[g] += node.cpu_seconds;
    placement.bytes[g] += node.bytes;
    if (!node.accelerator) placement.accelerator[g] = 0;
    touched[v].insert(g);
  }
  for (const auto& [from, to] : problem.edges) touched[from].insert(graph.group_of[of_node[to]]);
  std::map<std::vector<int>, double> nets;
  for (size_t v = 0; v < touched.size(); ++v) {
    if (touched[v].size() < 2 || problem.nodes[v].send_seconds == 0) continue;
    nets[{touched[v].begin(), touched[v].end()}] += problem.nodes[v].send_seconds;
  }
  for (auto& [members, seconds] : nets) placement.nets.push_back({members, seconds});
  return placement;
}

/// Groups of no weight that touch one other group only: they go where that is. Pairs of classes.
std::vector<NodePair> leaves_of(const MaxLoadProblem& problem, const Grouped& placement,
                                const std::vector<int>& of_node) {
  const int groups = placement.graph.size();
  std::vector<std::set<int>> neighbours(groups);
  for (const auto& [from, to] : problem.edges) {
    const int a = placement.graph.group_of[of_node[from]];
    const int b = placement.graph.group_of[of_node[to]];
    if (a == b) continue;
    neighbours[a].insert(b);
    neighbours[b].insert(a);
  }
  std::vector<NodePair> together;
  for (int g = 0; g < groups; ++g) {
    if (placement.accelerator_seconds[g] > 0 || placement.cpu_seconds[g] > 0) continue;
    if (neighbours[g].size() != 1 || placement.accelerator[g] == 0) continue;
    together.emplace_back(placement.graph.members[g][0], placement.graph.members[*neighbours[g].begin()][0]);
  }
  return together;
}

Grouped groups_of_problem(const MaxLoadProblem& problem) {
  const std::vector<int> of_node = classes_of(problem);
  const int classes = 1 + *std::max_element(of_node.begin(), of_node.end());
  const std::vector<NodePair> edges = forward_edges(problem, of_node);
  double all_bytes = 0;
  for (const MaxLoadNode& node : problem.nodes) all_bytes += node.bytes;
  std::vector<NodePair> together;
  while (true) {
    Grouped placement = grouped(problem, contract(classes, edges, together), of_node);
    // Near a memory limit even what takes no time may be better off elsewhere.
    const std::vector<NodePair> more =
        all_bytes <= problem.memory_bytes ? leaves_of(problem, placement, of_node) : std::vector<NodePair>();
    if (more.empty()) return placement;
    together.insert(together.end(), more.begin(), more.end());
  }
}

/// Cuts to search, by the accelerator seconds done: each comes after its subsets.
class Cuts {
 public:
  Cuts(const Grouped& placement, const std::vector<NodeSet>& sets)
      : words_((placement.graph.size() + 63) / 64) {
    const int count = static_cast<int>(sets.size());
    std::vector<double> seconds(count, 0);
    for (int i = 0; i < count; ++i) {
      for (size_t g = sets[i].find_first(); g != NodeSet::npos; g = sets[i].find_next(g))
        seconds[i] += placement.accelerator_seconds[g];
    }
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::vector<size_t> sizes;
    for (const NodeSet& set : sets) sizes.push_back(set.count());
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      if (seconds[a] != seconds[b]) return seconds[a] < seconds[b];
      return sizes[a] != sizes[b] ? sizes[a] < sizes[b] : sets[a] < sets[b];
    });
    for (const int i : order) add(placement, sets[i], seconds[i]);
    net_begin.push_back(static_cast<int>(nets.size()));
  }

  int size() const { return static_cast<int>(accelerator_seconds.size()); }
  bool test(int i, int g) const {
    return (bits_[static_cast<size_t>(i) * words_ + (g >> 6)] >> (g & 63) & 1) != 0;
  }
  bool is_subset(int i, int j) const {
    const uint64_t* a = bits_.data() + static_cast<size_t>(i) * words_;
    const uint64_t* b = bits_.data() + static_cast<size_t>(j) * words_;
    for (int w = 0; w < words_; ++w) {
      if ((a[w] & ~b[w]) != 0) return false;
    }
    return true;
  }

  std::vector<double> accelerator_seconds;
  std::vector<double> cpu_seconds;
  std::vector<double> bytes;
  std::vector<int> unsupported;  // groups that must not be on an accelerator
  std::vector<int> net_begin;    // nets that cross the cut: nets[net_begin[i] .. net_begin[i + 1])
  std::vector<int> nets;

 private:
  void add(const Grouped& placement, const NodeSet& set, double seconds) {
    double processor = 0;
    double size = 0;
    int barred = 0;
    for (size_t g = set.find_first(); g != NodeSet::npos; g = set.find_next(g)) {
      processor += placement.cpu_seconds[g];
      size += placement.bytes[g];
      barred += placement.accelerator[g] == 0;
    }
    accelerator_seconds.push_back(seconds);
    cpu_seconds.push_back(processor);
    bytes.push_back(size);
    unsupported.push_back(barred);
    net_begin.push_back(static_cast<int>(nets.size()));
    for (size_t n = 0; n < placement.nets.size(); ++n) {
      const auto inside = [&set](int g) { return set.test(g); };
      const std::vector<int>& groups = placement.nets[n].groups;
      const auto held = std::count_if(groups.begin(), groups.end(), inside);
      if (held > 0 && held < static_cast<std::ptrdiff_t>(groups.size())) nets.push_back(static_cast<int>(n));
    }
    const size_t begin = bits_.size();
    bits_.resize(begin + words_, 0);
    for (size_t g = set.find_first(); g != NodeSet::npos; g = set.find_next(g))
      bits_[begin + (g >> 6)] |= uint64_t{1} << (g & 63);
  }

  int words_;
  std::vector<uint64_t> bits_;
};

struct Step {
  int from = 0;
  int to = 0;
  bool processor = false;
};

class Search {
 public:
  Search(const MaxLoadProblem& problem, const Grouped& placement, const std::vector<NodeSet>& sets)
      : problem_(problem), placement_(placement), cuts_(placement, sets) {
    for (int g = 0; g < placement.graph.size(); ++g) {
      const double there = placement.cpu_seconds[g];
      const double here = placement.accelerator_seconds[g];
      if (here > 0) relief_ = std::max(relief_, there > 0 ? here / there : kInfinite);
    }
  }

  /// No plan at all has a smaller load: all is shared out evenly, and CPUs take what they are best at.
  double floor_seconds() const {
    const double parts = static_cast<double>(problem_.accelerators) +
                         (problem_.processors > 0 ? relief_ * static_cast<double>(problem_.processors) : 0);
    return cuts_.accelerator_seconds.back() / parts;
  }

  double load(const Step& step) const {
    return step.processor ? cuts_.cpu_seconds[step.to] - cuts_.cpu_seconds[step.from]
                          : accelerator_load(step.from, step.to);
  }

  /// A plan of at most `limit`, if the cuts allow one: fewest accelerators for each cut and number of
  /// CPUs.
  std::optional<std::vector<Step>> within(double limit) const {
    const int count = cuts_.size();
    const auto processors = static_cast<int>(problem_.processors);
    const int64_t none = problem_.accelerators + 1;
    std::vector<std::vector<int64_t>> fewest(processors + 1, std::vector<int64_t>(count, none));
    std::vector<std::vector<Step>> how(processors + 1, std::vector<Step>(count));
    fewest[0][0] = 0;
    const double all = cuts_.accelerator_seconds.back();
    for (int i = 0; i + 1 < count; ++i) {
      for (int used = 0; used <= processors; ++used) {
        const int64_t held = fewest[used][i];
        if (held == none) continue;
        const double done = cuts_.accelerator_seconds[i];
        if (held < problem_.accelerators) {
          // What the devices that are left cannot do must be done by then.
          const double least = std::max(done, all - capacity(held + 1, used, limit) - kProof * all);
          std::vector<int64_t>& row = fewest[used];
          for (int j = first_with(least, i + 1); j < count; ++j) {
            if (cuts_.accelerator_seconds[j] - done > limit) break;
            if (row[j] <= held + 1 || !cuts_.is_subset(i, j) || accelerator_load(i, j) > limit) continue;
            row[j] = held + 1;
            how[used][j] = {i, j, false};
          }
        }
        if (used == processors) continue;
        std::vector<int64_t>& row = fewest[used + 1];
        const double least = std::max(done, all - capacity(held, used + 1, limit) - kProof * all);
        for (int j = first_with(least, i + 1); j < count; ++j) {
          if (cuts_.accelerator_seconds[j] - done > relief_ * limit * (1 + kProof)) break;
          if (row[j] <= held || cuts_.cpu_seconds[j] - cuts_.cpu_seconds[i] > limit) continue;
          if (!cuts_.is_subset(i, j)) continue;
          row[j] = held;
          how[used + 1][j] = {i, j, true};
        }
      }
    }
    int used = 0;
    while (used <= processors && fewest[used].back() == none) ++used;
    if (used > processors) return std::nullopt;
    std::vector<Step> steps;
    for (int j = count - 1; j != 0;) {
      const Step step = how[used][j];
      steps.push_back(step);
      used -= step.processor;
      j = step.from;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  MaxLoadPlan plan_of(const std::vector<Step>& steps) const {
    MaxLoadPlan plan;
    for (const Step& step : steps) {
      MaxLoadStage stage;
      stage.processor = step.processor;
      for (int g = 0; g < placement_.graph.size(); ++g) {
        if (!cuts_.test(step.to, g) || cuts_.test(step.from, g)) continue;
        stage.nodes.insert(stage.nodes.end(), placement_.nodes[g].begin(), placement_.nodes[g].end());
      }
      std::sort(stage.nodes.begin(), stage.nodes.end());
      stage.load_seconds = load(step);
      plan.load_seconds = std::max(plan.load_seconds, stage.load_seconds);
      plan.stages.push_back(std::move(stage));
    }
    return plan;
  }
  int size() const { return cuts_.size(); }

 private:
  /// Accelerator seconds that are done at most by all devices but these.
  double capacity(int64_t accelerators, int processors, double limit) const {
    const auto left = static_cast<double>(problem_.accelerators - accelerators);
    const auto others = static_cast<double>(problem_.processors - processors);
    return limit * (left + (others > 0 ? relief_ * others : 0));
  }
  int first_with(double seconds, int from) const {
    const auto& all = cuts_.accelerator_seconds;
    return static_cast<int>(std::lower_bound(all.begin() + from, all.end(), seconds) - all.begin());
  }
  double accelerator_load(int i, int j) const {
    if (cuts_.unsupported[i] != cuts_.unsupported[j]) return kInfinite;
    if (cuts_.bytes[j] - cuts_.bytes[i] > problem_.memory_bytes) return kInfinite;
    double seconds = cuts_.accelerator_seconds[j] - cuts_.accelerator_seconds[i];
    const auto touches = [&](int net) {
      const std::vector<int>& groups = placement_.nets[net].groups;
      return std::any_of(groups.begin(), groups.end(),
                         [&](int g) { return cuts_.test(j, g) && !cuts_.test(i, g); });
    };
    const auto begin = cuts_.nets.begin();
    for (auto n = begin + cuts_.net_begin[i]; n != begin + cuts_.net_begin[i + 1]; ++n) {
      if (touches(*n)) seconds += placement_.nets[*n].seconds;
    }
    const auto first = begin + cuts_.net_begin[i];
    const auto last = begin + cuts_.net_begin[i + 1];
    for (auto n = begin + cuts_.net_begin[j]; n != begin + cuts_.net_begin[j + 1]; ++n) {
      if (!std::binary_search(first, last, *n) && touches(*n)) seconds += placement_.nets[*n].seconds;
    }
    return seconds;
  }

  const MaxLoadProblem& problem_;
  const Grouped& placement_;
  Cuts cuts_;
  double relief_ = 0;  // most accelerator seconds that a CPU does in a second
};

/// Brings `best` down as far as the cuts allow; the bound that this proves for them.
double improve(const Search& search, double low, std::optional<MaxLoadPlan>* best) {
  const auto tried = [&](double limit) {
    const std::optional<std::vector<Step>> steps = search.within(limit);
    if (!steps) {
      low = limit;
      return;
    }
    *best = search.plan_of(*steps);
  };
  if (!*best) {
    tried(kAnyLoad);
    if (!*best) return kInfinite;
  }
  const auto high = [best] { return (*best)->load_seconds; };
  while (high() - low > 2 * kProof * high()) {
    tried(high() * (1 - kProof));
    if (high() - low > 0.05 * high()) tried(low + (high() - low) / 2);
  }
  return low;
}

}  // namespace

std::optional<MaxLoadPlan> search_max_load(const MaxLoadProblem& problem) {
  PW_CHECK(!problem.nodes.empty(), "a problem has nodes");
  const Grouped placement = groups_of_problem(problem);
  std::optional<MaxLoadPlan> best;
  double floor = 0;
  for (const uint32_t seed : {0U, 1U, 2U}) {
    // Along an order of the groups, as an order of sets of groups.
    std::vector<NodeSet> sets = {NodeSet(placement.graph.size())};
    for (const int g : order_of_groups(placement.graph, seed)) {
      sets.push_back(sets.back());
      sets.back().set(g);
    }
    const Search search(problem, placement, sets);
    floor = search.floor_seconds();
    improve(search, floor, &best);
  }
  const std::optional<DownSets> all = all_down_sets(placement.graph, kMostDownSets);
  double bound = floor;
  int64_t searched = placement.graph.size() + 1;
  if (all) {
    std::vector<NodeSet> sets;
    for (int i = 0; i < all->size(); ++i) sets.push_back(all->as_bits(i, placement.graph.size()));
    searched = all->size();
    bound = improve(Search(problem, placement, sets), floor, &best);
  }
  if (!best) return best;
  best->lower_bound_seconds = std::min(bound, best->load_seconds);
  best->down_sets = searched;
  return best;
}

double stage_load_seconds(const MaxLoadProblem& problem, const MaxLoadStage& stage) {
  const std::set<int> mine(stage.nodes.begin(), stage.nodes.end());
  double seconds = 0;
  double bytes = 0;
  for (const int v : stage.nodes) {
    const MaxLoadNode& node = problem.nodes[v];
    seconds += stage.processor ? node.cpu_seconds : node.accelerator_seconds;
    bytes += node.bytes;
    if (!stage.processor && !node.accelerator) return kInfinite;
  }
  if (stage.processor) return seconds;
  if (bytes > problem.memory_bytes) return kInfinite;
  std::set<int> crossing;
  for (const auto& [from, to] : problem.edges) {
    if (mine.count(from) != mine.count(to)) crossing.insert(from);
  }
  for (const int v : crossing) seconds += problem.nodes[v].send_seconds;
  return seconds;
}

MaxLoadProblem max_load_problem(const Profile& profile, const Topology& topology) {
  const CostInputs inputs = cost_inputs(profile, topology, 0);
  const Dataflow flow(profile);
  MaxLoadProblem problem;
  problem.accelerators = topology.device_count();
  if (memory_limit_bytes(topology) > 0)
    problem.memory_bytes = static_cast<double>(memory_limit_bytes(topology));
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& profiled = profile.nodes[v];
    MaxLoadNode node;
    node.name = profiled.name;
    node.accelerator_seconds = profiled.compute_seconds();
    node.cpu_seconds = kInfinite;
    node.bytes += static_cast<double>(flow.parameter_bytes[v]);
    node.bytes += static_cast<double>(profiled.buffer_bytes + profiled.saved_bytes);
    // There, and its gradient back.
    double bytes = 0;
    for (const ProfiledValue& output : profiled.outputs) bytes += static_cast<double>(output.bytes);
    node.send_seconds = 2 * message_seconds(bytes, inputs);
    node.color = v;
    problem.nodes.push_back(std::move(node));
    for (const int reader : flow.successors[v]) problem.edges.emplace_back(v, reader);
  }
  for (const NodeSet& group : flow.tied) {
    const size_t first = group.find_first();
    for (size_t v = first; v != NodeSet::npos; v = group.find_next(v))
      problem.nodes[v].color = static_cast<int64_t>(first);
  }
  return problem;
}

}  // namespace pipewright

#include "optimizer/search/widen.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "optimizer/cuts/down_sets.h"
#include "optimizer/cuts/free_nodes.h"
#include "optimizer/cuts/orders.h"
#include "optimizer/search/bound.h"
#include "optimizer/search/few_cuts.h"

namespace pipewright {
namespace {

constexpr uint32_t kOrders = 5;
constexpr int kAlongOrder = 300;      // cuts of each order that is tried
constexpr int kBesideBest = 200;      // cuts of the best order that stay
constexpr int64_t kAroundCuts = 800;  // for all cuts of the best plan together
constexpr int kCutsAlongOrder = 12;   // cuts along the order, on each side of a cut
constexpr int kRounds = 3;
constexpr double kGain = 5e-4;        // less is not worth another round
constexpr double kGoodEnough = 3e-3;  // of the period, above the bound

double done_seconds(const State& state) { return state.forward_seconds + state.backward_seconds; }

NodeSet groups_of(const Contraction& graph, const NodeSet& nodes) {
  NodeSet groups(graph.size());
  for (int g = 0; g < graph.size(); ++g) groups.set(g, nodes.test(graph.members[g][0]));
  return groups;
}

/// Down-sets around `cut`: those that hold all of it but what was added last, and nothing but it and what
/// comes next along its order, for as long a stretch of the order as leaves them at most `most`.
std::vector<NodeSet> down_sets_around(const Contraction& graph, const NodeSet& cut, int64_t most) {
  // The order: what the cut holds as the groups are numbered, then the rest.
  const NodeSet inside = groups_of(graph, cut);
  std::vector<int> order;
  for (size_t g = inside.find_first(); g != NodeSet::npos; g = inside.find_next(g))
    order.push_back(static_cast<int>(g));
  const auto at = static_cast<int>(order.size());
  const NodeSet outside = ~inside;
  for (size_t g = outside.find_first(); g != NodeSet::npos; g = outside.find_next(g))
    order.push_back(static_cast<int>(g));

  std::optional<DownSets> best;
  NodeSet best_base;
  for (int reach = 1;; reach += std::max(1, reach / 3)) {
    const int from = std::max(0, at - reach);
    const int to = std::min(graph.size(), at + reach);
    NodeSet base(graph.size());
    NodeSet limit(graph.size());
    for (int k = 0; k < to; ++k) {
      if (k < from) base.set(order[k]);
      limit.set(order[k]);
    }
    std::optional<DownSets> sets = down_sets_between(graph, base, limit, most);
    if (!sets) break;
    best = std::move(sets);
    best_base = base;
    if (from == 0 && to == graph.size()) break;
  }
  std::vector<NodeSet> cuts;
  for (int i = 0; best && i < best->size(); ++i) {
    cuts.push_back(nodes_of(graph, best->as_bits(i, graph.size()) | best_base));
  }
  return cuts;
}

std::vector<NodeSet> thinned_cuts(const States& states, int most) {
  std::vector<NodeSet> cuts;
  for (const int number : thinned(states, most)) cuts.push_back(states.states[number].done);
  return cuts;
}

/// The cuts along an order (so states by the seconds done) next to those after which so much is done, at most
/// `most` on each side.
void add_near(const States& order, double seconds, int most, std::vector<NodeSet>* cuts) {
  const auto& states = order.states;
  const auto less = [](const State& state, double limit) { return done_seconds(state) < limit; };
  const auto at = std::lower_bound(states.begin(), states.end(), seconds, less) - states.begin();
  const auto end = std::min<std::ptrdiff_t>(order.size(), at + most);
  for (auto k = std::max<std::ptrdiff_t>(0, at - most); k < end; ++k) cuts->push_back(states[k].done);
}

/// The cut along an order after which about `seconds` are done.
const NodeSet& cut_at(const States& order, double seconds) {
  const auto less = [](const State& state, double limit) { return done_seconds(state) < limit; };
  const auto at = std::lower_bound(order.states.begin(), order.states.end(), seconds, less);
  return at == order.states.end() ? order.states.back().done : at->done;
}

/// Which cuts the search would look at: none that late and early nodes make pointless.
class Sensible {
 public:
  Sensible(const Dataflow& flow, bool memory_limited)
      : flow_(flow), late_(late_nodes(flow)), early_(early_nodes(flow, memory_limited)) {}

  bool operator()(const NodeSet& cut) const {
    const auto inside = [&cut](int v) { return cut.test(v); };
    const NodeSet early = early_ - cut;
    for (size_t v = early.find_first(); v != NodeSet::npos; v = early.find_next(v)) {
      const auto& read = flow_.predecessors[v];
      if (!read.empty() && std::all_of(read.begin(), read.end(), inside)) return false;
    }
    const NodeSet late = late_ & cut;
    for (size_t v = late.find_first(); v != NodeSet::npos; v = late.find_next(v))
      if (!cut.test(static_cast<size_t>(flow_.successors[v][0]))) return false;
    return true;
  }

 private:
  const Dataflow& flow_;
  NodeSet late_;
  NodeSet early_;
};

/// The best of the plans so far, each a search among some cuts.
class Best {
 public:
  Best(const Dataflow& flow, const Problem& problem, bool memory_limited)
      : flow_(flow), problem_(problem), sensible_(flow, memory_limited) {}

  /// True if the period fell by more than what is worth while.
  bool search_among(std::vector<NodeSet> cuts) {
    const auto pointless = [this](const NodeSet& cut) { return !sensible_(cut); };
    cuts.erase(std::remove_if(cuts.begin(), cuts.end(), pointless), cuts.end());
    if (solution_) {
      for (const FoundStage& stage : solution_->stages) cuts.push_back(states_.states[stage.to].done);
    }
    States states = states_of(flow_, std::move(cuts));
    Problem problem = problem_;
    problem.states = &states;
    const std::optional<Solution> found = search(problem);
    if (!found) return false;
    const bool first = !solution_;
    const double before = first ? 0 : solution_->period_seconds;
    if (!first && found->period_seconds > before) return false;
    solution_ = found;
    states_ = std::move(states);
    return first || found->period_seconds < before * (1 - kGain);
  }
  const std::optional<Solution>& solution() const { return solution_; }
  States& states() { return states_; }

 private:
  const Dataflow& flow_;
  const Problem& problem_;
  Sensible sensible_;
  States states_;
  std::optional<Solution> solution_;
};

void look_around(const Contraction& graph, const States& order, int rounds, Best* best) {
  for (int round = 0; round < rounds; ++round) {
    const States& states = best->states();
    std::vector<NodeSet> cuts = thinned_cuts(states, kBesideBest);
    const auto stages = static_cast<int64_t>(best->solution()->stages.size());
    for (const FoundStage& stage : best->solution()->stages) {
      const NodeSet& cut = states.states[stage.to].done;
      add_near(order, done_seconds(states.states[stage.to]), kCutsAlongOrder, &cuts);
      if (stage.to == states.last()) continue;
      for (NodeSet& near : down_sets_around(graph, cut, kAroundCuts / stages))
        cuts.push_back(std::move(near));
    }
    if (!best->search_among(std::move(cuts))) return;
  }
}

}  // namespace

WideSolution search_widely(const Dataflow& flow, const Problem& problem, const States& states,
                           bool memory_limited, bool briefly) {
  const Contraction graph = contract(flow, memory_limited);
  Best best(flow, problem, memory_limited);
  best.search_among(thinned_cuts(states, kAlongOrder));
  States order = states;
  for (uint32_t seed = 0; seed < kOrders; ++seed) {
    States all = states_of(flow, cuts_along(graph, order_of_groups(graph, seed)));
    if (best.search_among(thinned_cuts(all, kAlongOrder))) order = std::move(all);
  }
  WideSolution result;
  if (best.solution()) look_around(graph, order, briefly ? 1 : kRounds, &best);
  if (best.solution() && !briefly) {
    const Bounds bounds(flow, graph, problem);
    for (int round = 0; round < kRounds; ++round) {
      Bound bound = bounds.of(best.solution()->period_seconds);
      result.bound_seconds = std::max(result.bound_seconds, bound.period_seconds);
      if (result.bound_seconds > best.solution()->period_seconds * (1 - kGoodEnough)) break;
      std::vector<NodeSet> cuts = std::move(bound.cuts);
      if (bound.down_sets == 0) {
        const auto places = static_cast<int64_t>(bound.places_seconds.size());
        for (const double seconds : bound.places_seconds) {
          const NodeSet& cut = cut_at(order, seconds);
          add_near(order, seconds, kCutsAlongOrder, &cuts);
          for (NodeSet& near : down_sets_around(graph, cut, kAroundCuts / places))
            cuts.push_back(std::move(near));
        }
      }
      for (NodeSet& cut : thinned_cuts(order, kBesideBest)) cuts.push_back(std::move(cut));
      if (!best.search_among(std::move(cuts))) break;
      look_around(graph, order, kRounds, &best);
    }
    result.bound_seconds = std::min(result.bound_seconds, best.solution()->period_seconds);
  }
  result.solution = best.solution();
  result.states = std::move(best.states());
  result.states.exact = false;
  return result;
}

}  // namespace pipewright

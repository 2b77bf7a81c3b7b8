#include "optimizer/cuts/states.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "graph/error.h"
#include "optimizer/cost/stage_memory.h"
#include "optimizer/cost/tied.h"
#include "optimizer/cuts/free_nodes.h"

namespace pipewright {
namespace {

/// How cuts grow: which nodes may come next, and what comes along with each.
class Growth {
 public:
  Growth(const Dataflow& flow, bool memory_limited)
      : flow_(flow), late_(late_nodes(flow)), early_(early_nodes(flow, memory_limited)) {}

  /// True if `v` may be the next to join `done`, and nothing that it reads may: adding that first and `v`
  /// then comes to the same.
  bool is_next(const NodeSet& done, int v) const {
    if (!may_add(done, v)) return false;
    const auto& before = flow_.predecessors[v];
    return std::none_of(before.begin(), before.end(), [&](int p) { return may_add(done, p); });
  }

  /// `done`, `v`, all that `v` needs, and early nodes that then have all they read.
  NodeSet with(const NodeSet& done, int v) const {
    NodeSet larger = done | flow_.ancestors[v];
    larger.set(v);
    for (size_t e = early_.find_first(); e != NodeSet::npos; e = early_.find_next(e)) {
      if (flow_.ancestors[e].any() && flow_.ancestors[e].is_subset_of(larger)) larger.set(e);
    }
    return larger;
  }

 private:
  // A late node only comes along with its reader.
  bool may_add(const NodeSet& done, int v) const {
    return !done.test(v) && !early_.test(v) && !late_.test(v);
  }

  const Dataflow& flow_;
  NodeSet late_;
  NodeSet early_;
};

/// Of `nodes`, those that may be next, ascending.
std::vector<int> next_of(const Growth& growth, const NodeSet& done, std::vector<int> nodes) {
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const auto barred = [&](int v) { return !growth.is_next(done, v); };
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(), barred), nodes.end());
  return nodes;
}

/// What may be next after `larger`, which grew from a set after which `before` might have been: some of
/// those, and readers of what was added.
std::vector<int> next_after(const Dataflow& flow, const Growth& growth, std::vector<int> before,
                            const NodeSet& added, const NodeSet& larger) {
  for (size_t v = added.find_first(); v != NodeSet::npos; v = added.find_next(v)) {
    before.insert(before.end(), flow.successors[v].begin(), flow.successors[v].end());
  }
  return next_of(growth, larger, std::move(before));
}

std::vector<int> first_of(const Dataflow& flow, const Growth& growth) {
  std::vector<int> all(flow.size());
  std::iota(all.begin(), all.end(), 0);
  return next_of(growth, NodeSet(flow.size()), std::move(all));
}

/// All cuts; empty if there are more than `most`.
std::vector<NodeSet> all_cuts(const Dataflow& flow, const Growth& growth, int64_t most) {
  std::set<NodeSet> known = {NodeSet(flow.size())};
  std::vector<NodeSet> found = {NodeSet(flow.size())};
  std::vector<std::vector<int>> next = {first_of(flow, growth)};  // by cut; emptied once it was looked at
  for (size_t at = 0; at < found.size(); ++at) {
    const std::vector<int> here = std::move(next[at]);
    for (const int v : here) {
      NodeSet larger = growth.with(found[at], v);
      if (!known.insert(larger).second) continue;
      if (static_cast<int64_t>(known.size()) > most) return {};
      next.push_back(next_after(flow, growth, here, larger - found[at], larger));
      found.push_back(std::move(larger));
    }
  }
  return found;
}

/// The cuts along one order: always the node after which the least has to be carried; among equals the one
/// that reads what was made last (depth first), then the first.
std::vector<NodeSet> cuts_of_one_order(const Dataflow& flow, const Growth& growth) {
  std::vector<NodeSet> found = {NodeSet(flow.size())};
  std::vector<int> turn(flow.size(), -1);
  std::vector<int> candidates = first_of(flow, growth);
  while (true) {
    const NodeSet& done = found.back();
    NodeSet best;
    int64_t best_bytes = 0;
    int best_turn = -1;
    for (const int v : candidates) {
      int newest = -1;
      for (const int p : flow.predecessors[v]) newest = std::max(newest, turn[p]);
      NodeSet larger = growth.with(done, v);
      const int64_t bytes = live_bytes(flow, larger);
      if (!best.empty() && (bytes > best_bytes || (bytes == best_bytes && newest <= best_turn))) continue;
      best = std::move(larger);
      best_bytes = bytes;
      best_turn = newest;
    }
    if (best.empty()) return found;
    const NodeSet added = best - done;
    for (size_t v = added.find_first(); v != NodeSet::npos; v = added.find_next(v)) {
      turn[v] = static_cast<int>(found.size());
    }
    candidates = next_after(flow, growth, std::move(candidates), added, best);
    found.push_back(std::move(best));
  }
}

/// Grows by nodes and keeps the sums: an order of the nodes costs no more than the graph is large.
class Sums {
 public:
  explicit Sums(const Dataflow& flow) : flow_(flow), waiting_(flow.values.size()) {
    state_.done = NodeSet(flow.size());
    state_.classes.resize(flow.class_seconds.size());
    for (size_t i = 0; i < waiting_.size(); ++i)
      waiting_[i] = static_cast<int>(flow.values[i].readers.size());
  }

  void add(const NodeSet& nodes) {
    for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v)) {
      const ProfiledNode& node = flow_.profile.nodes[v];
      state_.forward_seconds += node.forward_seconds;
      state_.backward_seconds += node.backward_seconds();
      state_.backward_weight_seconds += node.backward_weight_seconds;
      state_.launch += node.launch_pass();
      state_.gaps += node.gap_pass();
      state_.least_seconds += flow_.least_seconds[v];
      for (size_t c = 0; c < state_.classes.size(); ++c) {
        state_.classes[c].forward_seconds += flow_.class_seconds[c][v].forward_seconds;
        state_.classes[c].backward_seconds += flow_.class_seconds[c][v].backward_seconds;
      }
      state_.buffer_bytes += node.buffer_bytes;
      state_.saved_bytes += node.saved_bytes;
      state_.waiting_gradient_bytes += flow_.bytes.waiting_gradients[v];
      state_.parameter_bytes += flow_.parameter_bytes[v];
      state_.trainable_bytes += flow_.trainable_bytes[v];
      // Producers have smaller numbers than readers, so a value is made before it is read.
      for (const int made : flow_.values_made[v]) {
        if (waiting_[made] > 0) carry(made, 1);
      }
      for (const int read : flow_.values_read[v]) {
        if (--waiting_[read] == 0) carry(read, -1);
      }
    }
    state_.done |= nodes;
  }
  const State& state() const { return state_; }

 private:
  void carry(int number, int64_t sign) {
    const DataflowValue& value = flow_.values[number];
    state_.cut_bytes += sign * value.bytes;
    state_.held_bytes += sign * (value.bytes - value.saved_bytes);
    if (value.keepers.empty()) return;
    if (sign > 0) {
      state_.sent.push_back(number);
    } else {
      state_.sent.erase(std::find(state_.sent.begin(), state_.sent.end(), number));
    }
  }

  const Dataflow& flow_;
  State state_;
  std::vector<int> waiting_;  // by value: readers that are not there yet
};

}  // namespace

States states_of(const Dataflow& flow, std::vector<NodeSet> cuts) {
  cuts.emplace_back(flow.size());
  // What nothing leads to belongs to the last stage.
  cuts.push_back(~NodeSet(flow.size()));
  std::sort(cuts.begin(), cuts.end(), [](const NodeSet& a, const NodeSet& b) {
    const size_t of_a = a.count();
    const size_t of_b = b.count();
    return of_a != of_b ? of_a < of_b : a < b;
  });
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

  States result;
  result.bytes = flow.bytes;
  result.values = flow.values;
  result.captures = flow.captures;
  result.class_factors = flow.class_factors;
  result.updates_together = flow.copies;
  if (flow.copies) result.ties = flow.ties;
  std::optional<Sums> sums(flow);
  result.nested = true;
  NodeSet frozen(flow.size());
  for (size_t v = 0; v < flow.profile.frozen.nodes; ++v) frozen.set(v);
  for (const NodeSet& done : cuts) {
    if (!separated_tie(flow, done).empty()) continue;
    if (!sums->state().done.is_subset_of(done)) {
      result.nested = false;
      sums.emplace(flow);
    }
    sums->add(done - sums->state().done);
    State state = sums->state();
    state.frozen = done.any() && done.is_subset_of(frozen);
    result.states.push_back(std::move(state));
  }
  if (result.nested) return result;

  result.supersets.resize(result.size());
  for (int i = 0; i < result.size(); ++i) {
    for (int j = i + 1; j < result.size(); ++j) {
      if (result.states[i].done.is_subset_of(result.states[j].done)) result.supersets[i].push_back(j);
    }
  }
  return result;
}

std::optional<States> all_states(const Dataflow& flow, bool memory_limited, int64_t most) {
  PW_CHECK(flow.size() > 0, "a valid profile has nodes");
  const Growth growth(flow, memory_limited);
  // A chain has one cut more than nodes, and needs no lists.
  std::vector<NodeSet> cuts = all_cuts(flow, growth, std::max<int64_t>(most, flow.size() + 1));
  const auto chained = [&cuts] {
    for (size_t i = 1; i < cuts.size(); ++i) {
      if (!cuts[i - 1].is_subset_of(cuts[i])) return false;
    }
    return true;
  };
  if (cuts.empty() || (static_cast<int64_t>(cuts.size()) > most && !chained())) return std::nullopt;
  return states_of(flow, std::move(cuts));
}

States enumerate_states(const Dataflow& flow, bool memory_limited, int64_t most) {
  if (std::optional<States> all = all_states(flow, memory_limited, most)) return *std::move(all);
  States some = states_of(flow, cuts_of_one_order(flow, Growth(flow, memory_limited)));
  some.exact = false;
  return some;
}

int64_t longest_chain(const States& states) {
  std::vector<int64_t> length(states.size(), 0);
  for (int i = states.last() - 1; i >= 0; --i) {
    for (const int j : states.after(i)) length[i] = std::max(length[i], length[j] + 1);
  }
  return length[0];
}

StageLoad load_between(const States& states, int i, int j) {
  const State& from = states.states[i];
  const State& to = states.states[j];
  StageLoad load;
  // Sums in another order may differ by less than nothing.
  load.forward_seconds = std::max(0.0, to.forward_seconds - from.forward_seconds);
  load.backward_seconds = std::max(0.0, to.backward_seconds - from.backward_seconds);
  load.backward_weight_seconds =
      std::clamp(to.backward_weight_seconds - from.backward_weight_seconds, 0.0, load.backward_seconds);
  load.least_seconds = to.least_seconds - from.least_seconds;
  for (size_t c = 0; c < to.classes.size(); ++c) {
    load.classes.push_back({to.classes[c].forward_seconds - from.classes[c].forward_seconds,
                            to.classes[c].backward_seconds - from.classes[c].backward_seconds});
  }
  load.captured = states.captures && (states.updates_together || j == states.last());
  load.parameter_bytes = to.parameter_bytes - from.parameter_bytes;
  load.trainable_bytes = to.trainable_bytes - from.trainable_bytes;
  load.buffer_bytes = to.buffer_bytes - from.buffer_bytes;
  load.saved_bytes = to.saved_bytes - from.saved_bytes;
  load.waiting_gradient_bytes = to.waiting_gradient_bytes - from.waiting_gradient_bytes;
  load.held_bytes = to.held_bytes;
  for (const int number : to.sent) {
    const DataflowValue& value = states.values[static_cast<size_t>(number)];
    if (from.done.test(static_cast<size_t>(value.producer))) continue;
    const int64_t unkept = unkept_bytes(value, to.done);
    load.saved_bytes -= unkept;
    load.held_bytes += unkept;
  }
  load.in_bytes = from.cut_bytes;
  load.out_bytes = to.cut_bytes;
  load.first = i == 0;
  load.last = j == states.last();
  load.frozen = to.frozen;
  load.after_frozen = from.frozen;
  if (states.ties.empty()) return load;
  const TiedShare share = tied_share(states.ties, from.done, to.done);
  load.parameter_bytes += share.parameter_bytes;
  load.trainable_bytes += share.trainable_bytes;
  load.tied_sent_bytes = share.sent_bytes;
  load.tied_held_bytes = share.held_bytes;
  return load;
}

StageWorkspace workspace_between(const States& states, int i, int j) {
  constexpr size_t kMostKept = 1024;
  const auto work_out = [&] {
    return stage_workspace(states.bytes, states.values, states.states[i].done, states.states[j].done);
  };
  const auto size = static_cast<size_t>(states.size());
  if (size > kMostKept) return work_out();
  if (states.workspaces.size() != size * size) states.workspaces.assign(size * size, std::nullopt);
  std::optional<StageWorkspace>& known =
      states.workspaces[static_cast<size_t>(i) * size + static_cast<size_t>(j)];
  if (!known) known = work_out();
  return *known;
}

StageLoad launched_between(const States& states, int i, int j) {
  StageLoad load = load_between(states, i, j);
  PassSeconds launch = states.states[j].launch, gaps = states.states[j].gaps;
  launch -= states.states[i].launch;
  gaps -= states.states[i].gaps;
  set_launched(launch, gaps, states.class_factors, &load);
  return load;
}

double least_between(const States& states, int i, int j) {
  const State& from = states.states[i];
  const State& to = states.states[j];
  return to.least_seconds - from.least_seconds;
}

}  // namespace pipewright

#include "optimizer/states.h"

#include <algorithm>
#include <limits>
#include <set>

#include "graph/error.h"

namespace pipewright {
namespace {

/// How cuts grow: which nodes may come next, and what comes along with each.
class Growth {
 public:
  Growth(const Dataflow& flow, const CostModel& model, bool memory_limited)
      : flow_(flow), late_(model.late_nodes(flow)), early_(model.early_nodes(flow, memory_limited)) {}

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
  // A late node may once something it reads is there; before that it only comes along with a reader.
  bool may_add(const NodeSet& done, int v) const {
    if (done.test(v) || early_.test(v)) return false;
    if (!late_.test(v)) return true;
    const auto& before = flow_.predecessors[v];
    return std::any_of(before.begin(), before.end(), [&](int p) { return done.test(p); });
  }

  const Dataflow& flow_;
  NodeSet late_;
  NodeSet early_;
};

/// All cuts; empty if there are more than `most`.
std::vector<NodeSet> all_cuts(const Dataflow& flow, const Growth& growth, int64_t most) {
  std::set<NodeSet> known = {NodeSet(flow.size())};
  std::vector<NodeSet> found = {NodeSet(flow.size())};
  for (size_t next = 0; next < found.size(); ++next) {
    for (int v = 0; v < flow.size(); ++v) {
      if (!growth.is_next(found[next], v)) continue;
      NodeSet larger = growth.with(found[next], v);
      if (!known.insert(larger).second) continue;
      if (static_cast<int64_t>(known.size()) > most) return {};
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
  while (true) {
    const NodeSet& done = found.back();
    NodeSet best;
    int64_t best_bytes = 0;
    int best_turn = -1;
    for (int v = 0; v < flow.size(); ++v) {
      if (!growth.is_next(done, v)) continue;
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
    found.push_back(std::move(best));
  }
}

State state_of(const Dataflow& flow, const CostModel& model, NodeSet done) {
  State state;
  for (size_t v = done.find_first(); v != NodeSet::npos; v = done.find_next(v)) {
    const ProfiledNode& node = flow.profile.nodes[v];
    state.forward_seconds += node.forward_seconds;
    state.backward_seconds += node.backward_seconds();
    state.buffer_bytes += node.buffer_bytes;
    state.saved_bytes += node.saved_bytes;
    if (!flow.owns_parameters[v]) continue;
    state.parameter_bytes += node.parameter_bytes;
    state.trainable_bytes += node.trainable_parameter_bytes;
  }
  state.cut_bytes = live_bytes(flow, done);
  state.charged_bytes = model.cut_bytes(flow, done);
  state.held_bytes = unsaved_live_bytes(flow, done);
  state.done = std::move(done);
  return state;
}

}  // namespace

States enumerate_states(const Dataflow& flow, const CostModel& model, bool memory_limited, int64_t most) {
  PW_CHECK(flow.size() > 0, "a valid profile has nodes");
  const Growth growth(flow, model, memory_limited);
  States result;
  result.transient_bytes = flow.transient_bytes;
  result.saved_bytes = flow.saved_bytes;
  std::vector<NodeSet> cuts = all_cuts(flow, growth, most);
  if (cuts.empty()) {
    result.exact = false;
    cuts = cuts_of_one_order(flow, growth);
  }
  // What nothing leads to belongs to the last stage.
  cuts.push_back(~NodeSet(flow.size()));
  std::sort(cuts.begin(), cuts.end(), [](const NodeSet& a, const NodeSet& b) {
    const size_t of_a = a.count();
    const size_t of_b = b.count();
    return of_a != of_b ? of_a < of_b : a < b;
  });
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (NodeSet& done : cuts) {
    if (separated_tie(flow, done).empty()) result.states.push_back(state_of(flow, model, std::move(done)));
  }

  result.supersets.resize(result.size());
  for (int i = 0; i < result.size(); ++i) {
    for (int j = i + 1; j < result.size(); ++j) {
      if (!result.exact || result.states[i].done.is_subset_of(result.states[j].done))
        result.supersets[i].push_back(j);
    }
  }
  return result;
}

StageLoad load_between(const States& states, int i, int j) {
  const State& from = states.states[i];
  const State& to = states.states[j];
  StageLoad load;
  load.forward_seconds = to.forward_seconds - from.forward_seconds;
  load.backward_seconds = to.backward_seconds - from.backward_seconds;
  load.parameter_bytes = to.parameter_bytes - from.parameter_bytes;
  load.trainable_bytes = to.trainable_bytes - from.trainable_bytes;
  load.buffer_bytes = to.buffer_bytes - from.buffer_bytes;
  load.saved_bytes = to.saved_bytes - from.saved_bytes;
  load.held_bytes = to.held_bytes;
  load.in_bytes = from.cut_bytes;
  load.out_bytes = to.cut_bytes;
  load.charged_in_bytes = from.charged_bytes;
  load.charged_out_bytes = to.charged_bytes;
  load.first = i == 0;
  load.last = j == states.last();
  return load;
}

int64_t workspace_between(const States& states, int i, int j) {
  return workspace_bytes(states.transient_bytes, states.saved_bytes, states.states[i].done,
                         states.states[j].done);
}

double compute_between(const States& states, int i, int j) {
  const State& from = states.states[i];
  const State& to = states.states[j];
  return to.forward_seconds - from.forward_seconds + (to.backward_seconds - from.backward_seconds);
}

}  // namespace pipewright

#include "optimizer/cuts/free_nodes.h"

#include <algorithm>

namespace pipewright {
namespace {

bool costs_nothing(const Dataflow& flow, int v) {
  const ProfiledNode& node = flow.profile.nodes[v];
  double slowest = node.compute_seconds() + node.launch_pass().sum() + node.gap_pass().sum();
  for (const std::vector<PassSeconds>& nodes : flow.class_seconds)
    slowest = std::max(slowest, nodes[v].forward_seconds + nodes[v].backward_seconds);
  return slowest == 0 && node.parameter_bytes == 0 && node.buffer_bytes == 0 && node.parameters.empty();
}

}  // namespace

// A node that costs nothing and reads nothing but inputs of the graph (or other such nodes) never does better
// in an earlier stage than in that of its reader: there it is not sent, and no more is kept than would have
// come in. With several readers the value may have to be sent on from there; so only one reader is surely
// safe.
NodeSet late_nodes(const Dataflow& flow) {
  NodeSet free(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    if (!costs_nothing(flow, v) || flow.successors[v].size() != 1) continue;
    const int reader = flow.successors[v][0];
    if (costs_nothing(flow, reader) && flow.successors[reader].empty()) continue;  // see early_nodes()
    int64_t made = 0;
    for (const ProfiledValue& output : node.outputs) made += output.bytes;
    int64_t kept = node.saved_bytes;  // with all that would come along
    const NodeSet& along = flow.ancestors[v];
    for (size_t p = along.find_first(); p != NodeSet::npos; p = along.find_next(p)) {
      kept += flow.profile.nodes[p].saved_bytes;
    }
    if (kept <= made && along.is_subset_of(free)) free.set(v);
  }
  return free;
}

// The mirror image: a node that costs nothing and that nobody reads is best off where what it reads is made.
NodeSet early_nodes(const Dataflow& flow, bool memory_limited) {
  NodeSet free(flow.size());
  for (int v = 0; v < flow.size(); ++v) {
    const ProfiledNode& node = flow.profile.nodes[v];
    const bool reads = !flow.predecessors[v].empty();
    if (!costs_nothing(flow, v) || !flow.successors[v].empty() || !reads) continue;
    if (!memory_limited || node.saved_bytes == 0) free.set(v);
  }
  return free;
}

}  // namespace pipewright

#include "optimizer/cuts/contraction.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>
#include <functional>
#include <queue>

#include "graph/error.h"
#include "optimizer/cuts/free_nodes.h"

namespace pipewright {
namespace {

using Digraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;

void sort_unique(std::vector<int>* numbers) {
  std::sort(numbers->begin(), numbers->end());
  numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
}

/// Of the groups that can run, always the one with the smallest first node.
std::vector<int> order_of(const std::vector<int>& first, const std::vector<std::vector<int>>& next) {
  std::vector<int> missing(next.size(), 0);
  for (const std::vector<int>& groups : next) {
    for (const int group : groups) ++missing[group];
  }
  using Entry = std::pair<int, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (size_t g = 0; g < next.size(); ++g) {
    if (missing[g] == 0) ready.emplace(first[g], static_cast<int>(g));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int group = ready.top().second;
    ready.pop();
    order.push_back(group);
    for (const int after : next[group]) {
      if (--missing[after] == 0) ready.emplace(first[after], after);
    }
  }
  PW_CHECK_EQ(order.size(), next.size());  // strongly connected parts make no cycle
  return order;
}

}  // namespace

Contraction contract(int nodes, const std::vector<NodePair>& edges, const std::vector<NodePair>& together) {
  Digraph graph(nodes);
  for (const auto& [from, to] : edges) boost::add_edge(from, to, graph);
  for (const auto& [a, b] : together) {
    boost::add_edge(a, b, graph);
    boost::add_edge(b, a, graph);
  }
  std::vector<int> part(nodes);
  const int parts = boost::strong_components(
      graph, boost::make_iterator_property_map(part.begin(), boost::get(boost::vertex_index, graph)));

  std::vector<int> first(parts, nodes);
  for (int v = nodes; v-- > 0;) first[part[v]] = v;
  std::vector<std::vector<int>> next(parts);
  for (const auto& [from, to] : edges) {
    if (part[from] != part[to]) next[part[from]].push_back(part[to]);
  }
  for (std::vector<int>& groups : next) sort_unique(&groups);

  std::vector<int> number(parts);
  const std::vector<int> order = order_of(first, next);
  for (int g = 0; g < parts; ++g) number[order[g]] = g;
  Contraction result;
  result.members.resize(parts);
  result.previous.resize(parts);
  result.next.resize(parts);
  for (int v = 0; v < nodes; ++v) {
    result.group_of.push_back(number[part[v]]);
    result.members[result.group_of[v]].push_back(v);
  }
  for (int p = 0; p < parts; ++p) {
    for (const int after : next[p]) {
      result.next[number[p]].push_back(number[after]);
      result.previous[number[after]].push_back(number[p]);
    }
  }
  for (auto* lists : {&result.next, &result.previous}) {
    for (std::vector<int>& list : *lists) sort_unique(&list);
  }
  return result;
}

Contraction contract(const Dataflow& flow, bool memory_limited) {
  std::vector<NodePair> edges;
  std::vector<NodePair> together;
  for (int v = 0; v < flow.size(); ++v) {
    for (const int reader : flow.successors[v]) edges.emplace_back(v, reader);
  }
  for (const NodeSet& group : flow.tied) {
    const size_t first = group.find_first();
    for (size_t v = group.find_next(first); v != NodeSet::npos; v = group.find_next(v)) {
      together.emplace_back(static_cast<int>(first), static_cast<int>(v));
    }
  }
  const NodeSet late = late_nodes(flow);
  const NodeSet early = early_nodes(flow, memory_limited);
  for (int v = 0; v < flow.size(); ++v) {
    if (late.test(v)) together.emplace_back(v, flow.successors[v][0]);
    if (early.test(v) && flow.predecessors[v].size() == 1) together.emplace_back(flow.predecessors[v][0], v);
  }
  return contract(flow.size(), edges, together);
}

NodeSet nodes_of(const Contraction& graph, const NodeSet& groups) {
  NodeSet nodes(graph.group_of.size());
  for (size_t g = groups.find_first(); g != NodeSet::npos; g = groups.find_next(g)) {
    for (const int v : graph.members[g]) nodes.set(v);
  }
  return nodes;
}

}  // namespace pipewright

#include "optimizer/plan/renamed_ranks.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/successive_shortest_path_nonnegative_weights.hpp>
#include <map>
#include <string>
#include <vector>

#include "graph/error.h"
#include "optimizer/plan/neighbours.h"
#include "optimizer/plan/plan_sequence.h"

namespace pipewright {
namespace {

/// Nodes by number, with the bytes of each: sets of them are compared for each pair of ranks.
class NumberedNodes {
 public:
  explicit NumberedNodes(const std::map<std::string, int64_t>& bytes) {
    for (const auto& [name, count] : bytes) {
      number_of_.emplace(name, bytes_.size());
      bytes_.push_back(count);
    }
  }

  /// By rank: its nodes.
  std::vector<std::vector<size_t>> by_rank(const Plan& plan, int64_t ranks) const {
    std::vector<std::vector<size_t>> nodes(static_cast<size_t>(ranks));
    for (const Stage& stage : plan.stages) {
      for (const std::string& node : stage.nodes) {
        const size_t number = number_of_.at(node);
        for (const int64_t rank : stage.ranks) nodes[static_cast<size_t>(rank)].push_back(number);
      }
    }
    return nodes;
  }

  /// Whether each node is one of these.
  std::vector<bool> set_of(const std::vector<size_t>& nodes) const {
    std::vector<bool> set(bytes_.size());
    for (const size_t node : nodes) set[node] = true;
    return set;
  }

  int64_t bytes_lacking(const std::vector<bool>& has, const std::vector<size_t>& needs) const {
    int64_t lacks = 0;
    for (const size_t node : needs)
      if (!has[node]) lacks += bytes_[node];
    return lacks;
  }

 private:
  std::map<std::string, size_t> number_of_;
  std::vector<int64_t> bytes_;
};

/// Of so many ranks those that may change places.
std::map<int64_t, std::vector<int64_t>> alike(const CostInputs& inputs, int64_t ranks) {
  std::map<int64_t, std::vector<int64_t>> groups;
  const std::vector<int64_t> kinds = kinds_of(inputs, ranks);
  for (int64_t rank = 0; rank < ranks; ++rank) groups[kinds[static_cast<size_t>(rank)]].push_back(rank);
  return groups;
}

/// By place the rank that takes it, such that the sum of costs[place][rank] is least: a flow of one unit from
/// each place to a rank of its own.
std::vector<size_t> cheapest_assignment(const std::vector<std::vector<int64_t>>& costs) {
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Edge = Traits::edge_descriptor;
  struct Flow {
    int64_t capacity = 0, residual = 0, cost = 0;
    Edge reverse;
  };
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Flow>;
  const size_t count = costs.size(), source = 2 * count, sink = source + 1;
  Graph graph(2 * count + 2);
  const auto connect = [&](size_t from, size_t to, int64_t cost) {
    const Edge there = add_edge(from, to, graph).first, back = add_edge(to, from, graph).first;
    graph[there] = {1, 0, cost, back};
    graph[back] = {0, 0, -cost, there};
  };
  for (size_t i = 0; i < count; ++i) {
    connect(source, i, 0);
    connect(count + i, sink, 0);
    for (size_t rank = 0; rank < count; ++rank) connect(i, count + rank, costs[i][rank]);
  }
  boost::successive_shortest_path_nonnegative_weights(graph, source, sink,
                                                      boost::capacity_map(get(&Flow::capacity, graph))
                                                          .residual_capacity_map(get(&Flow::residual, graph))
                                                          .weight_map(get(&Flow::cost, graph))
                                                          .reverse_edge_map(get(&Flow::reverse, graph)));
  std::vector<size_t> rank_of(count, count);
  for (size_t i = 0; i < count; ++i) {
    for (auto [edge, end] = out_edges(i, graph); edge != end; ++edge)
      if (graph[*edge].capacity == 1 && graph[*edge].residual == 0)
        rank_of[i] = boost::target(*edge, graph) - count;
    PW_CHECK_LT(rank_of[i], count);
  }
  return rank_of;
}

}  // namespace

Plan renamed_for_fewest_moves(const Plan& in_force, Plan plan, const Profile& profile,
                              const CostInputs& inputs) {
  if (inputs.levels.size() > 1) return plan;
  const int64_t ranks = std::max(in_force.world_size, plan.world_size);
  const NumberedNodes nodes(state_bytes(profile, inputs.optimizer_slots));
  const auto needs = nodes.by_rank(plan, ranks);
  std::vector<std::vector<bool>> has;
  for (const std::vector<size_t>& own : nodes.by_rank(in_force, ranks)) has.push_back(nodes.set_of(own));
  std::vector<int64_t> name(static_cast<size_t>(ranks));
  for (const auto& [kind, members] : alike(inputs, plan.world_size)) {
    std::vector<std::vector<int64_t>> costs;  // bytes that the rank lacks of what the place needs
    for (const int64_t place : members) {
      costs.emplace_back();
      for (const int64_t rank : members)
        costs.back().push_back(
            nodes.bytes_lacking(has[static_cast<size_t>(rank)], needs[static_cast<size_t>(place)]));
    }
    const std::vector<size_t> rank_of = cheapest_assignment(costs);
    for (size_t i = 0; i < members.size(); ++i) name[static_cast<size_t>(members[i])] = members[rank_of[i]];
  }
  for (Stage& stage : plan.stages)
    for (int64_t& rank : stage.ranks) rank = name[static_cast<size_t>(rank)];
  return plan;
}

}  // namespace pipewright

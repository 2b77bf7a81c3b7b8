#include "optimizer/cuts/min_cut.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <limits>

namespace pipewright {
namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using Network = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<boost::edge_capacity_t, int64_t,
                    boost::property<boost::edge_residual_capacity_t, int64_t,
                                    boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;

constexpr int64_t kUncuttable = std::numeric_limits<int64_t>::max() / 4;

void add_edge(Network* network, int from, int to, int64_t capacity) {
  const auto edge = boost::add_edge(from, to, *network).first;
  const auto back = boost::add_edge(to, from, *network).first;
  auto capacities = boost::get(boost::edge_capacity, *network);
  auto reverse = boost::get(boost::edge_reverse, *network);
  capacities[edge] = capacity;
  capacities[back] = 0;
  reverse[edge] = back;
  reverse[back] = edge;
}

}  // namespace

int64_t least_cut_bytes(const Contraction& graph, const std::vector<DataflowValue>& values,
                        const std::vector<char>& sure, const std::vector<char>& possible) {
  constexpr int kIn = 0;
  constexpr int kOut = 1;
  std::vector<int> vertex;  // by group
  int count = 2;
  for (int g = 0; g < graph.size(); ++g) vertex.push_back(sure[g] ? kIn : possible[g] ? count++ : kOut);

  Network network(count);
  for (int g = 0; g < graph.size(); ++g) {
    if (vertex[g] == kIn || vertex[g] == kOut) continue;
    for (const int before : graph.previous[g]) {
      if (vertex[before] != kIn) add_edge(&network, vertex[g], vertex[before], kUncuttable);
    }
  }
  int64_t certain = 0;
  for (const DataflowValue& value : values) {
    const int from = vertex[value.producer];
    const auto is_out = [&](int reader) { return vertex[reader] == kOut; };
    const auto is_in = [&](int reader) { return vertex[reader] == kIn; };
    if (from == kOut || std::all_of(value.readers.begin(), value.readers.end(), is_in)) continue;
    const bool out = std::any_of(value.readers.begin(), value.readers.end(), is_out);
    if (from == kIn && out) {
      certain += value.bytes;
    } else if (out) {
      add_edge(&network, from, kOut, value.bytes);
    } else {
      // The value's own vertex is in the set only if all its readers are.
      const auto own = static_cast<int>(boost::add_vertex(network));
      add_edge(&network, from, own, value.bytes);
      for (const int reader : value.readers) {
        if (vertex[reader] != kIn) add_edge(&network, own, vertex[reader], kUncuttable);
      }
    }
  }
  return certain + boost::push_relabel_max_flow(network, kIn, kOut);
}

}  // namespace pipewright

#include "profiler/pieces.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "models/run/passes.h"
#include "models/run/storages.h"

namespace pipewright {
namespace {

/// From the first node that touches a memory to the last that writes it.
std::vector<std::pair<size_t, size_t>> written_stretches(const Graph& graph) {
  const Storages storages(graph);
  std::map<size_t, size_t> last_write;
  for (const auto& write : storages.writes()) last_write[storages.class_of(write.tensor)] = write.node;
  std::map<size_t, size_t> first_touch;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    std::vector<std::string> touched = graph.nodes[i].reads();
    touched.insert(touched.end(), graph.nodes[i].outputs.begin(), graph.nodes[i].outputs.end());
    for (const std::string& name : touched) first_touch.emplace(storages.class_of(name), i);
  }
  std::vector<std::pair<size_t, size_t>> stretches;
  for (const auto& [memory, node] : last_write) stretches.emplace_back(first_touch.at(memory), node);
  return stretches;
}

/// From each constant to those that read it.
std::vector<std::pair<size_t, size_t>> constant_stretches(const Graph& graph) {
  std::vector<size_t> all(graph.nodes.size());
  std::iota(all.begin(), all.end(), 0);
  const std::vector<bool> constant = constant_nodes(graph, all);
  std::map<std::string, size_t> maker;
  std::vector<std::pair<size_t, size_t>> stretches;
  for (const size_t i : all) {
    if (!constant[i]) continue;
    for (const std::string& name : graph.nodes[i].reads()) stretches.emplace_back(maker.at(name), i);
    for (const std::string& name : graph.nodes[i].outputs) maker[name] = i;
  }
  return stretches;
}

}  // namespace

std::vector<size_t> piece_begins(const Graph& graph) {
  std::vector<size_t> until(graph.nodes.size());  // the last node that a node's piece must hold
  std::iota(until.begin(), until.end(), 0);
  for (const auto& stretches : {written_stretches(graph), constant_stretches(graph)})
    for (const auto& [first, last] : stretches) until[first] = std::max(until[first], last);
  std::vector<size_t> begins;
  size_t end = 0;
  for (size_t i = 0; i < until.size(); ++i) {
    if (i == end) begins.push_back(i);
    end = std::max({end, until[i] + 1});
  }
  return begins;
}

}  // namespace pipewright

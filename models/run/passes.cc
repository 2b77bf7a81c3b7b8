#include "models/run/passes.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "models/run/operators.h"
#include "models/run/storages.h"

namespace pipewright {
namespace {

using Names = std::unordered_set<std::string>;

bool any_of_them(const std::vector<std::string>& names, const Names& set) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return set.count(name) > 0; });
}

/// Nodes that something depends on, by position.
std::vector<bool> live_nodes(const Graph& graph) {
  const Storages storages(graph);
  std::unordered_map<size_t, std::vector<size_t>> writers;  // by storage class
  for (const auto& write : storages.writes()) writers[storages.class_of(write.tensor)].push_back(write.node);
  std::unordered_map<std::string, size_t> maker;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& output : graph.nodes[i].outputs) maker.emplace(output, i);
  }

  std::vector<bool> live(graph.nodes.size(), false);
  std::vector<size_t> to_visit;
  const auto keep = [&](size_t node) {
    if (live[node]) return;
    live[node] = true;
    to_visit.push_back(node);
  };
  // Who makes the tensor, and who writes the memory that it is in.
  const auto need = [&](const std::string& tensor) {
    if (const auto found = maker.find(tensor); found != maker.end()) keep(found->second);
    if (const auto found = writers.find(storages.class_of(tensor)); found != writers.end()) {
      for (const size_t node : found->second) keep(node);
    }
  };
  for (const std::string& output : graph.outputs) need(output);
  for (const Buffer& buffer : graph.buffers) need(buffer.name);
  while (!to_visit.empty()) {
    const size_t node = to_visit.back();
    to_visit.pop_back();
    for (const std::string& tensor : graph.nodes[node].reads()) need(tensor);
  }
  return live;
}

}  // namespace

Graph without_dead_nodes(Graph graph) {
  const std::vector<bool> live = live_nodes(graph);
  Names read(graph.outputs.begin(), graph.outputs.end());
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (!live[i]) {
      for (const std::string& output : node.outputs) graph.values.erase(output);
      continue;
    }
    for (const std::string& name : node.reads()) read.insert(name);
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  const auto unread = [&](const auto& tensor) { return read.count(tensor.name) == 0; };
  std::erase_if(graph.parameters, unread);
  std::erase_if(graph.buffers, unread);
  std::erase_if(graph.inputs, [&](const std::string& name) {
    if (read.count(name) > 0) return false;
    graph.values.erase(name);
    return true;
  });
  return graph;
}

Graph with_nodes_everywhere(Graph graph) {
  constexpr int64_t kMostShare = 16;
  const Storages storages(graph);
  std::unordered_set<size_t> written;
  for (const auto& write : storages.writes()) written.insert(storages.class_of(write.tensor));
  const auto is_written = [&](const std::string& name) { return written.count(storages.class_of(name)) > 0; };

  Names free;  // tensors that a stage can have without being sent them
  for (const std::string& name : graph.inputs) {
    const std::string& dtype = graph.values.at(name).dtype;
    if (dtype == "int64" || dtype == "int32" || dtype == "bool") free.insert(name);
  }
  for (const Buffer& buffer : graph.buffers) {
    if (!is_written(buffer.name)) free.insert(buffer.name);
  }
  int64_t all_bytes = 0;
  std::unordered_map<std::string, size_t> maker;
  std::vector<bool> candidate(graph.nodes.size(), false);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const auto read = node.reads();
    candidate[i] = !draws_numbers(node, find_operator(node)) &&
                   std::all_of(read.begin(), read.end(),
                               [&](const std::string& name) { return free.count(name) > 0; }) &&
                   std::none_of(node.outputs.begin(), node.outputs.end(), is_written);
    for (const std::string& output : node.outputs) {
      maker.emplace(output, i);
      all_bytes += graph.values.at(output).bytes();
      if (candidate[i]) free.insert(output);
    }
  }

  // Of those, the ones that several other nodes read, and what they are made from.
  std::vector<size_t> readers(graph.nodes.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (candidate[i]) continue;
    std::set<size_t> makers;
    for (const std::string& name : graph.nodes[i].reads()) {
      if (const auto found = maker.find(name); found != maker.end()) makers.insert(found->second);
    }
    for (const size_t node : makers) ++readers[node];
  }
  const Names outputs(graph.outputs.begin(), graph.outputs.end());
  std::set<size_t> chosen;
  int64_t chosen_bytes = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!candidate[i] || readers[i] < 2 || any_of_them(graph.nodes[i].outputs, outputs)) continue;
    std::set<size_t> fresh;
    std::vector<size_t> to_visit = {i};
    int64_t fresh_bytes = 0;
    while (!to_visit.empty()) {
      const size_t node = to_visit.back();
      to_visit.pop_back();
      if (chosen.count(node) > 0 || !fresh.insert(node).second) continue;
      for (const std::string& output : graph.nodes[node].outputs)
        fresh_bytes += graph.values.at(output).bytes();
      for (const std::string& name : graph.nodes[node].reads()) {
        if (const auto found = maker.find(name); found != maker.end()) to_visit.push_back(found->second);
      }
    }
    if ((chosen_bytes + fresh_bytes) * kMostShare > all_bytes) continue;
    chosen_bytes += fresh_bytes;
    chosen.merge(fresh);
  }
  graph.everywhere.clear();
  for (const size_t i : chosen) graph.everywhere.push_back(graph.nodes[i].name);
  return graph;
}

std::vector<bool> constant_nodes(const Graph& graph, const std::vector<size_t>& nodes) {
  Names shared;
  for (const auto& set : graph.together) shared.insert(set.begin(), set.end());
  Names made;
  std::vector<bool> constant;
  for (const size_t i : nodes) {
    const Node& node = graph.nodes[i];
    const auto read = node.reads();
    constant.push_back(
        shared.count(node.name) == 0 && !draws_numbers(node, find_operator(node)) &&
        std::all_of(read.begin(), read.end(), [&](const std::string& name) { return made.count(name) > 0; }));
    if (constant.back()) made.insert(node.outputs.begin(), node.outputs.end());
  }
  return constant;
}

}  // namespace pipewright

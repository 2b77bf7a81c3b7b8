#include "runtime/stage/partition.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "models/definition/gradient_flow.h"

namespace pipewright {

namespace {

/// Adds to each stage the nodes of graph.everywhere that it needs. They depend on each other only.
void add_everywhere(const Graph& graph, std::vector<StageInterface>& stages) {
  const std::set<std::string> everywhere(graph.everywhere.begin(), graph.everywhere.end());
  for (size_t s = 0; s < stages.size(); ++s) {
    std::set<size_t> nodes(stages[s].nodes.begin(), stages[s].nodes.end());
    std::set<std::string> needed;
    if (s + 1 == stages.size()) needed.insert(graph.outputs.begin(), graph.outputs.end());
    // Makers stand before readers: from the end, all readers of a value are met before its maker.
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      const Node& node = graph.nodes[i];
      const bool makes = std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](const std::string& name) { return needed.count(name) > 0; });
      if (nodes.count(i) == 0 && !(makes && everywhere.count(node.name) > 0)) continue;
      nodes.insert(i);
      for (const std::string& name : node.reads()) needed.insert(name);
    }
    stages[s].nodes.assign(nodes.begin(), nodes.end());
  }
}

}  // namespace

std::vector<StageInterface> partition(const Graph& graph, const Plan& plan) {
  std::map<std::string, size_t> position;
  for (size_t i = 0; i < graph.nodes.size(); ++i) position[graph.nodes[i].name] = i;
  std::vector<StageInterface> stages(plan.stages.size());
  std::vector<size_t> stage_of(graph.nodes.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const std::string& name : plan.stages[s].nodes) {
      stages[s].nodes.push_back(position.at(name));
      stage_of[position.at(name)] = s;
    }
  }
  if (!graph.everywhere.empty()) add_everywhere(graph, stages);
  for (StageInterface& stage : stages) std::sort(stage.nodes.begin(), stage.nodes.end());

  // Last stage that reads each value that may cross a cut.
  const std::set<std::string> fields(graph.inputs.begin(), graph.inputs.end());
  std::set<std::string> stays = fields;
  for (const std::string& name : graph.everywhere) {
    const Node& node = graph.nodes[position.at(name)];
    stays.insert(node.outputs.begin(), node.outputs.end());
  }
  std::map<std::string, size_t> last_reader;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const size_t i : stages[s].nodes) {
      for (const std::string& name : graph.nodes[i].reads()) {
        if (!graph.values.count(name)) continue;  // a parameter or a buffer
        if (!stays.count(name)) last_reader[name] = std::max(last_reader[name], s);
        auto& read = stages[s].fields;
        if (fields.count(name) && std::find(read.begin(), read.end(), name) == read.end())
          read.push_back(name);
      }
    }
  }
  auto& last_fields = stages.back().fields;
  for (const std::string& name : graph.outputs) {
    if (!stays.count(name)) last_reader[name] = stages.size() - 1;
    if (fields.count(name) && std::find(last_fields.begin(), last_fields.end(), name) == last_fields.end())
      last_fields.push_back(name);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& name : graph.nodes[i].outputs) {
      const auto reader = last_reader.find(name);
      if (reader == last_reader.end()) continue;
      for (size_t s = stage_of[i]; s < reader->second; ++s) {
        stages[s].sent.push_back(name);
        stages[s + 1].received.push_back(name);
      }
    }
  }
  return stages;
}

std::set<std::string> differentiable_values(const Graph& graph) {
  std::set<std::string> differentiable;
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.trainable && dtype_has_gradients(parameter.type.dtype))
      differentiable.insert(parameter.name);
  }
  // What is written in place is also read by the names that it had before: a gradient that reaches one node
  // of a set of Graph::together may come out of any of them.
  std::map<std::string, const Node*> nodes;
  for (const Node& node : graph.nodes) nodes[node.name] = &node;
  std::map<std::string, const std::vector<std::string>*> sharing;
  for (const auto& set : graph.together) {
    for (const std::string& name : set) sharing[name] = &set;
  }
  std::set<std::string> values;
  const auto add_outputs = [&](const Node& node) {
    for (const std::string& name : node.outputs) {
      if (!dtype_has_gradients(graph.values.at(name).dtype)) continue;
      differentiable.insert(name);
      values.insert(name);
    }
  };
  for (const Node& node : graph.nodes) {
    const auto read = differentiable_reads(node);
    const bool flows = std::any_of(read.begin(), read.end(),
                                   [&](const auto& name) { return differentiable.count(name) > 0; });
    if (!flows) continue;
    add_outputs(node);
    if (const auto set = sharing.find(node.name); set != sharing.end()) {
      for (const std::string& name : *set->second) add_outputs(*nodes.at(name));
    }
  }
  return values;
}

}  // namespace pipewright

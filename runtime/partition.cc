#include "runtime/partition.h"

#include <algorithm>
#include <map>

#include "graph/error.h"

namespace pipewright {

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
    std::sort(stages[s].nodes.begin(), stages[s].nodes.end());
  }

  // Last stage that reads each value made by a node, and the stage that makes it.
  const std::set<std::string> fields(graph.inputs.begin(), graph.inputs.end());
  std::map<std::string, size_t> last_reader;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& name : graph.nodes[i].reads()) {
      if (!graph.values.count(name)) continue;  // a parameter or a buffer
      if (fields.count(name)) {
        auto& read = stages[stage_of[i]].fields;
        if (std::find(read.begin(), read.end(), name) == read.end()) read.push_back(name);
      } else {
        last_reader[name] = std::max(last_reader[name], stage_of[i]);
      }
    }
  }
  for (const std::string& name : graph.outputs) {
    if (!fields.count(name)) last_reader[name] = stages.size() - 1;
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
    if (parameter.trainable && dtype_is_floating(parameter.type.dtype)) differentiable.insert(parameter.name);
  }
  // What is written in place is also read by the names that it had before: a gradient that reaches one node of a set
  // of Graph::together may come out of any of them.
  std::map<std::string, const Node*> nodes;
  for (const Node& node : graph.nodes) nodes[node.name] = &node;
  std::map<std::string, const std::vector<std::string>*> sharing;
  for (const auto& set : graph.together) {
    for (const std::string& name : set) sharing[name] = &set;
  }
  std::set<std::string> values;
  const auto add_outputs = [&](const Node& node) {
    for (const std::string& name : node.outputs) {
      if (!dtype_is_floating(graph.values.at(name).dtype)) continue;
      differentiable.insert(name);
      values.insert(name);
    }
  };
  for (const Node& node : graph.nodes) {
    const auto read = node.reads();
    const bool flows = node.gradient && std::any_of(read.begin(), read.end(), [&](const auto& name) {
                         return differentiable.count(name) > 0;
                       });
    if (!flows) continue;
    add_outputs(node);
    if (const auto set = sharing.find(node.name); set != sharing.end()) {
      for (const std::string& name : *set->second) add_outputs(*nodes.at(name));
    }
  }
  return values;
}

}  // namespace pipewright

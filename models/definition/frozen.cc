#include "models/definition/frozen.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "graph/model_layers.h"
#include "graph/pipeline_rules.h"

namespace pipewright {

Graph frozen_graph(const Graph& training, int64_t layers) {
  const size_t end = frozen_nodes(training, layers);
  Graph graph = training;
  if (end == 0) return graph;
  const Graph evaluation = evaluation_graph(training);
  std::set<std::string> read;
  for (size_t i = 0; i < end; ++i) {
    graph.nodes[i] = evaluation.nodes[i];
    graph.nodes[i].gradient = false;
    for (const std::string& name : graph.nodes[i].reads()) read.insert(name);
  }
  for (Parameter& parameter : graph.parameters)
    if (read.count(parameter.name)) parameter.trainable = false;
  return graph;
}

size_t frozen_nodes(const Graph& graph, int64_t layers) {
  return end_of_layers(model_layers(graph), layers, "model '" + graph.name + "'");
}

Model frozen_model(Model model, int64_t layers) {
  if (layers > 0) model.graph = frozen_graph(model.graph, layers);
  return model;
}

std::set<std::string> frozen_buffers(const Graph& graph, int64_t layers) {
  const size_t end = frozen_nodes(graph, layers);
  std::set<std::string> frozen;
  for (const Buffer& buffer : graph.buffers) frozen.insert(buffer.name);
  std::set<std::string> read;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& name : graph.nodes[i].reads()) {
      if (i < end) read.insert(name);
      if (i >= end) frozen.erase(name);
    }
  }
  std::erase_if(frozen, [&](const std::string& name) { return read.count(name) == 0; });
  return frozen;
}

Plan frozen_plan(Plan plan, const Graph& training, int64_t layers) {
  const Graph graph = frozen_graph(training, layers);
  std::set<std::string> trained;
  for (const Parameter& parameter : graph.parameters)
    if (parameter.trainable) trained.insert(parameter.name);
  std::map<std::string, const Node*> nodes;
  for (const Node& node : graph.nodes) nodes[node.name] = &node;
  plan.frozen_layers = layers;
  bool frozen = layers > 0 && !schedule_facts(plan.schedule).several_stages;
  for (Stage& stage : plan.stages) {
    for (const std::string& name : stage.nodes)
      for (const std::string& read : nodes.at(name)->reads()) frozen = frozen && trained.count(read) == 0;
    stage.frozen = frozen;
  }
  return plan;
}

}  // namespace pipewright

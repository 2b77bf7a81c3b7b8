#include "models/definition/frozen.h"

#include "graph/model_layers.h"
#include "models/definition/model.h"

namespace pipewright {

Graph frozen_graph(const Graph& training, int64_t layers) {
  const size_t end = end_of_layers(model_layers(training), layers, "model '" + training.name + "'");
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

}  // namespace pipewright

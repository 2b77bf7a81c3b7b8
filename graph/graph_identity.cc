#include "graph/graph_identity.h"

#include <cmath>

#include "graph/document.h"

namespace pipewright {

bool is_digest_of(const Graph& graph, const std::string& digest, const std::string& name) {
  if (graph.name == name) return document_digest(graph) == digest;
  Graph renamed = graph;
  renamed.name = name;
  return document_digest(renamed) == digest;
}

int64_t planned_samples(const Plan& plan) {
  if (!plan.predicted) return 0;
  // The rate was computed from the time.
  const double samples = plan.predicted->samples_per_second * plan.predicted->minibatch_seconds;
  return samples < 1e15 ? std::llround(samples) : 0;
}

int64_t samples_of(const Graph& graph) {
  if (graph.inputs.empty()) return 0;
  const auto& shape = graph.values.at(graph.inputs.front()).shape;
  return shape.empty() ? 0 : shape.front();
}

}  // namespace pipewright

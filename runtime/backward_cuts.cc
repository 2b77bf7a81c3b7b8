#include "runtime/backward_cuts.h"

#include <map>
#include <set>

namespace pipewright {

BackwardCuts backward_cuts(const Graph& graph, const std::vector<size_t>& nodes) {
  std::set<std::string> trainable;
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.trainable) trainable.insert(parameter.name);
  }
  std::map<std::string, std::set<size_t>> readers;
  for (const size_t i : nodes) {
    for (const std::string& name : graph.nodes[i].reads()) {
      if (trainable.count(name) != 0) readers[name].insert(i);
    }
  }
  BackwardCuts result;
  for (const size_t i : nodes) {
    BackwardCuts::Cut cut;
    for (const auto& [name, by] : readers) {
      if (by.size() == 1 && *by.begin() == i) cut.weights.push_back(name);
    }
    if (cut.weights.empty()) continue;
    for (const std::string& name : graph.nodes[i].outputs) {
      if (!dtype_has_gradients(graph.values.at(name).dtype)) continue;
      cut.values.push_back(result.values.size());
      result.values.push_back(name);
    }
    result.cuts.push_back(std::move(cut));
  }
  return result;
}

}  // namespace pipewright

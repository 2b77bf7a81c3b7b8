#include "runtime/stage/backward_cuts.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/run/storages.h"

namespace pipewright {
namespace {

// Which results are at one place of autograd's graph, whatever becomes of their memory.
class Places {
 public:
  explicit Places(const Graph& graph) : graph_(graph), storages_(graph) {
    for (const auto& write : storages_.writes())
      writers_[storages_.class_of(write.tensor)].insert(write.node);
  }

  bool is_one(size_t maker, const std::string& value) const {
    const size_t memory = storages_.class_of(value);
    const auto writers = writers_.find(memory);
    if (writers == writers_.end()) return true;
    const auto lies_there = [&](const std::string& name) { return storages_.class_of(name) == memory; };
    for (size_t i = 0; i <= *writers->second.rbegin(); ++i) {
      const auto read = graph_.nodes[i].reads();
      const bool touches = std::any_of(read.begin(), read.end(), lies_there);
      if (i <= maker ? touches : touches && writers->second.count(i) == 0) return false;
    }
    return true;
  }

 private:
  const Graph& graph_;
  Storages storages_;
  std::map<size_t, std::set<size_t>> writers_;  // nodes, by memory
};

}  // namespace

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
  const Places places(graph);
  BackwardCuts result;
  for (const size_t i : nodes) {
    BackwardCuts::Cut cut;
    for (const auto& [name, by] : readers) {
      if (by.size() == 1 && *by.begin() == i) cut.weights.push_back(name);
    }
    if (cut.weights.empty()) continue;
    const auto& outputs = graph.nodes[i].outputs;
    if (!std::all_of(outputs.begin(), outputs.end(),
                     [&](const auto& name) { return places.is_one(i, name); }))
      continue;
    for (const std::string& name : outputs) {
      if (!dtype_has_gradients(graph.values.at(name).dtype)) continue;
      cut.values.push_back(result.values.size());
      result.values.push_back(name);
    }
    result.cuts.push_back(std::move(cut));
  }
  return result;
}

}  // namespace pipewright

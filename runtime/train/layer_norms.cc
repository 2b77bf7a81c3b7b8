#include "runtime/train/layer_norms.h"

#include <cmath>
#include <set>

#include "graph/model_layers.h"
#include "runtime/update/gradient_norm.h"

namespace pipewright {

LayerNorms::LayerNorms(const Graph& graph) {
  std::set<std::string> parameters;
  for (const Parameter& parameter : graph.parameters) parameters.insert(parameter.name);
  const auto layers = model_layers(graph);
  layers_ = layers.size();
  size_t node = 0;
  for (size_t l = 0; l < layers_; ++l) {
    for (; node < layers[l].end; ++node)
      for (const std::string& name : graph.nodes[node].reads())
        if (parameters.count(name)) layer_of_.emplace(name, l);
  }
}

void LayerNorms::add(StageReplica& stage) {
  const StageProgram& program = stage.program();
  std::map<size_t, std::vector<at::Tensor>> gradients;  // by layer
  for (const size_t i : stage.counted()) {
    const auto layer = layer_of_.find(program.parameters()[program.trainable()[i]]);
    if (layer != layer_of_.end()) gradients[layer->second].push_back(stage.round_gradients()[i]);
  }
  for (const auto& [layer, of_layer] : gradients) {
    const at::Tensor norm = square_sum_on(stage.device(), of_layer).sqrt();
    at::Tensor& sum = sums_[{layer, stage.stage()}];
    sum = sum.defined() ? sum + norm : norm;
  }
}

std::vector<double> LayerNorms::take() {
  std::vector<double> norms(layers_);
  for (const auto& [place, sum] : sums_)
    norms[place.first] = std::hypot(norms[place.first], sum.item<double>());
  sums_.clear();
  return norms;
}

}  // namespace pipewright

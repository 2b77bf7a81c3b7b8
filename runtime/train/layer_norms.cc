#include "runtime/train/layer_norms.h"

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
  for (size_t l = 0; l < layers.size(); ++l) {
    for (; node < layers[l].end; ++node)
      for (const std::string& name : graph.nodes[node].reads())
        if (parameters.count(name)) layer_of_.emplace(name, l);
  }
  sums_.resize(layers_);
}

void LayerNorms::add(StageReplica& stage) {
  const StageProgram& program = stage.program();
  std::map<size_t, std::vector<at::Tensor>> gradients;  // by layer
  for (size_t i = 0; i < program.trainable().size(); ++i) {
    const auto layer = layer_of_.find(program.parameters()[program.trainable()[i]]);
    if (layer != layer_of_.end()) gradients[layer->second].push_back(stage.round_gradients()[i]);
  }
  for (const auto& [layer, of_layer] : gradients) {
    const at::Tensor norm = square_sum_on(stage.device(), of_layer).sqrt();
    sums_[layer] = sums_[layer].defined() ? sums_[layer] + norm : norm;
  }
}

std::vector<double> LayerNorms::take() {
  std::vector<double> norms;
  for (at::Tensor& sum : sums_) {
    norms.push_back(sum.defined() ? sum.item<double>() : 0);
    sum = at::Tensor();
  }
  return norms;
}

}  // namespace pipewright

// How large the gradients of a model's layers are: what rules of freezing go by.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// Of one rank's stages: for each layer (graph/model_layers.h) the L2 norm of its gradient, summed over
/// updates. A parameter counts with the first layer that reads it, and at the first stage that does if it is
/// tied; one of the head counts with none.
class LayerNorms {
 public:
  explicit LayerNorms(const Graph& graph);
  /// The stage is about to update with its round's gradients, summed over the replicas and not clipped.
  void add(StageReplica& stage);
  /// By layer what add() has seen since the last time; 0 of layers that this rank does not train. Of a layer
  /// that several of its stages share: the root of the squares' sum, as over ranks.
  std::vector<double> take();

 private:
  size_t layers_ = 0;
  std::map<std::string, size_t> layer_of_;                 // by parameter
  std::map<std::pair<size_t, int64_t>, at::Tensor> sums_;  // by layer and stage, where that computes
};

}  // namespace pipewright

// The layers that freezing counts, from the front of a model: the numbered modules that have parameters, such
// as features.3, layer2.0 or encoder.layers.encoder_layer_7 (PipeTransformer counts a transformer's blocks
// so).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/profile.h"

namespace pipewright {

/// One layer: nodes [end of the layer before it, `end`) of the model, in its order.
struct ModelLayer {
  std::string name;  ///< its module path: "encoder.layers.encoder_layer_7"
  size_t end = 0;
};

/// The outermost module of a path that is numbered: "layers.3" of "layers.3.attention.wq". "": none is.
std::string numbered_module(const std::string& path);

/// By rising `end`. A numbered module is the outermost part of a module path that is a number or ends in "_"
/// and a number; one with parameters begins a layer, where its first node is. What lies before the first (a
/// stem, an embedding) is part of it, and what lies between two of the one before. A model of fewer than two
/// such modules has the parts of its module paths instead, as deep as gives four layers or more. The head is
/// no layer: what lies behind the last numbered module, or, if no parameter does, that module. No layer ends
/// within a set of nodes that must stay together. May be empty.
std::vector<ModelLayer> model_layers(const Graph& graph);
/// The same layers, if the profile is of that graph.
std::vector<ModelLayer> model_layers(const Profile& profile);

/// Where the first `count` layers end, 0 of none. InputError if there are not so many: `where` says who asks
/// for them.
size_t end_of_layers(const std::vector<ModelLayer>& layers, int64_t count, const std::string& where);

}  // namespace pipewright

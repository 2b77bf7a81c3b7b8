// The model whose planning is timed.
#pragma once

#include <random>
#include <string>
#include <utility>

#include "graph/profile.h"

namespace pipewright {

/// A chain of nodes of very different cost.
inline Profile chain_of(int nodes) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  Profile profile;
  profile.model = "chain";
  profile.device = "none";
  profile.minibatch_samples = 64;
  for (int v = 0; v < nodes; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = node.name;
    if (v > 0) node.inputs = {"n" + std::to_string(v - 1) + ".out"};
    node.outputs = {{node.name + ".out", pick(100'000, 4'000'000)}};
    node.forward_seconds = 1e-5 * static_cast<double>(pick(10, 400));
    node.backward_input_seconds = node.backward_weight_seconds = node.forward_seconds;
    node.parameters = {node.name + ".weight"};
    node.parameter_bytes = node.trainable_parameter_bytes = pick(1'000, 20'000'000);
    node.saved_bytes = node.outputs[0].bytes;
    profile.nodes.push_back(std::move(node));
  }
  return profile;
}

}  // namespace pipewright

// Small random profiles for tests against exhaustive search. Few distinct values on purpose: ties are the
// hard part.
#pragma once

#include <random>
#include <string>

#include "graph/profile.h"

namespace pipewright::testing {

inline int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// A chain of `nodes` nodes or, with `edge_percent` < 100, a DAG whose pairs are joined with that
/// probability.
inline Profile random_profile(std::mt19937& random, int nodes, bool chain, int edge_percent) {
  Profile profile;
  profile.model = "random";
  profile.device = "none";
  profile.minibatch_samples = 8;
  profile.whole.step_seconds = static_cast<double>(pick(random, 0, 3)) * 1e-3;
  const bool ties = pick(random, 0, 9) == 0;
  for (int v = 0; v < nodes; ++v) {
    ProfiledNode node;
    node.name = "n" + std::to_string(v);
    node.layer = "layer" + std::to_string(v / 2);
    for (int u = 0; u < v; ++u) {
      if (chain ? u == v - 1 || pick(random, 0, 9) == 0 : pick(random, 1, 100) <= edge_percent) {
        node.inputs.push_back("n" + std::to_string(u) + ".out");
      }
    }
    if (pick(random, 0, 4) == 0) node.inputs.push_back("images");
    node.outputs = {{node.name + ".out", pick(random, 0, 4) * 1000}};
    const bool weightless = pick(random, 0, 4) == 0;
    if (!weightless) {
      node.forward_seconds = static_cast<double>(pick(random, 0, 5)) * 1e-3;
      node.backward_input_seconds = static_cast<double>(pick(random, 0, 5)) * 1e-3;
      node.backward_weight_seconds = static_cast<double>(pick(random, 0, 3)) * 0.7e-3;
      node.parameter_bytes = pick(random, 0, 2) == 0 ? 0 : pick(random, 1, 6) * 1000;
      node.trainable_parameter_bytes = pick(random, 0, 5) == 0 ? 0 : node.parameter_bytes;
      node.buffer_bytes = pick(random, 0, 2) * 100;
    }
    node.saved_bytes = pick(random, 0, 2) * node.outputs[0].bytes / 2;
    if (v % 3 == 0) node.keeps = node.inputs;
    if (v % 2 == 0) node.keeps.push_back(node.outputs[0].name);
    if (v % 3 == 1) node.workspace_bytes = node.outputs[0].bytes / 4;
    if (node.parameter_bytes > 0) {
      const bool shares = ties && pick(random, 0, 1) == 0;
      node.parameters = {shares ? "tied" : node.name + ".weight"};
      if (shares) node.parameter_bytes = node.trainable_parameter_bytes = 3000;
    }
    profile.nodes.push_back(node);
  }
  return profile;
}

}  // namespace pipewright::testing

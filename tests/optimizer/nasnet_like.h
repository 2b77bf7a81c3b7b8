// A graph with the shape of NASNet-A: cells that read the two cells before them, in each ten separable
// convolutions side by side. Far more down-sets than can be listed.
#pragma once

#include <random>
#include <string>

#include "graph/profile.h"

namespace pipewright::testing {

/// Three groups of `cells` cells; between groups the picture is halved in each direction and the channels are
/// doubled, so compute stays, weights grow fourfold and activations halve. Times vary by `seed`.
inline Profile nasnet_like(int cells, unsigned seed) {
  constexpr int kBranches = 10;
  constexpr int kLength = 6;  // nodes of a branch
  std::mt19937 random(seed);
  const auto around = [&random](double mean) { return mean * (0.7 + 0.6 * (random() % 1024) / 1024.0); };
  Profile profile;
  profile.model = "nasnet-like";
  profile.device = "none";
  profile.minibatch_samples = 32;
  int64_t activation_bytes = 12 << 20;
  int64_t weight_bytes = 60 << 10;
  const auto add = [&](const std::string& name, std::vector<std::string> inputs, double seconds,
                       int64_t bytes, int64_t weights) {
    ProfiledNode node;
    node.name = name;
    node.inputs = std::move(inputs);
    node.outputs = {{name + ".out", bytes}};
    node.forward_seconds = seconds / 3;
    node.backward_input_seconds = seconds / 3;
    node.backward_weight_seconds = seconds / 3;
    node.saved_bytes = bytes;
    node.parameter_bytes = node.trainable_parameter_bytes = weights;
    if (weights > 0) node.parameters = {name + ".weight"};
    profile.whole.forward_seconds += seconds / 3;
    profile.whole.backward_seconds += seconds * 2 / 3;
    profile.nodes.push_back(node);
    return name + ".out";
  };
  std::string before = add("stem", {"images"}, around(4e-3), activation_bytes, weight_bytes);
  std::string last = before;
  for (int c = 0; c < 3 * cells; ++c) {
    if (c > 0 && c % cells == 0) {
      activation_bytes /= 2;
      weight_bytes *= 4;
    }
    const std::string cell = "cell" + std::to_string(c);
    std::vector<std::string> sums;
    std::string pair;
    for (int b = 0; b < kBranches; ++b) {
      std::string value = b % 2 == 0 ? last : before;
      for (int k = 0; k < kLength; ++k) {
        const bool weighs = k % 3 == 1;
        value = add(cell + ".b" + std::to_string(b) + "." + std::to_string(k), {value},
                    around(weighs ? 6e-4 : 1e-4), activation_bytes / 5,
                    weighs ? weight_bytes + static_cast<int64_t>(random() % 1000) * 4 : 0);
      }
      if (b % 2 == 0) {
        pair = value;
      } else {
        sums.push_back(add(cell + ".add" + std::to_string(b / 2), {pair, value}, 0, activation_bytes / 5, 0));
      }
    }
    before = last;
    last = add(cell + ".concat", sums, 0, activation_bytes, 0);
  }
  add("head", {last}, around(1e-3), 4, 8 << 20);
  return profile;
}

}  // namespace pipewright::testing

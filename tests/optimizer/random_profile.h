// Small random profiles for tests against exhaustive search, and plans for them. Few distinct values on
// purpose: ties are the hard part.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "graph/plan.h"
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

/// Nodes whose kernels the host launches, and where some launches take longer than what they start.
inline void launch_by_host(std::mt19937& random, Profile* profile) {
  profile->device = "cuda:0 (drawn)";
  const double slow = static_cast<double>(pick(random, 1, 40)) * 0.1;
  const auto some = [&](double of) { return of * static_cast<double>(pick(random, 1, 9)) * 0.1; };
  for (ProfiledNode& node : profile->nodes) {
    node.forward_launch_seconds = some(slow * 3e-3);
    node.backward_launch_seconds = some(slow * 4e-3);
    node.forward_gap_seconds = some(3e-4);
    node.backward_gap_seconds = some(4e-4);
  }
  profile->whole.library_bytes = pick(random, 0, 2) * 500;
  profile->whole.input_bytes = pick(random, 0, 2) * 300;
}

/// A chain of stages along the nodes' order, on any devices.
inline Plan random_chain(std::mt19937& random, const Profile& profile, int64_t devices, bool replicated) {
  Plan plan;
  plan.model = profile.model;
  plan.strategy = "manual";
  std::vector<int64_t> ranks(static_cast<size_t>(devices));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  std::shuffle(ranks.begin(), ranks.end(), random);
  const auto nodes = static_cast<int64_t>(profile.nodes.size());
  int64_t stages = pick(random, 1, std::min(nodes, devices));
  int64_t begin = 0;
  for (; stages > 0; --stages) {
    Stage stage;
    const int64_t end = stages == 1 ? nodes : pick(random, begin + 1, nodes - stages + 1);
    for (; begin < end; ++begin) stage.nodes.push_back(profile.nodes[static_cast<size_t>(begin)].name);
    const int64_t spare = replicated ? static_cast<int64_t>(ranks.size()) - stages : 0;
    for (int64_t more = pick(random, 0, spare); more >= 0; --more) {
      stage.ranks.push_back(ranks.back());
      ranks.pop_back();
    }
    std::sort(stage.ranks.begin(), stage.ranks.end());
    stage.recompute = pick(random, 0, 4) == 0;
    plan.world_size += static_cast<int64_t>(stage.ranks.size());
    plan.stages.push_back(stage);
  }
  return plan;
}

}  // namespace pipewright::testing

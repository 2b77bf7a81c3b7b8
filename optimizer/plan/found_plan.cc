#include "optimizer/plan/found_plan.h"

#include <numeric>

#include "optimizer/cost/tied.h"
#include "optimizer/plan/stage_layers.h"

namespace pipewright {

Plan plan_of(const Solution& solution, const States& states, const Profile& profile) {
  Plan plan;
  std::vector<NodeSet> nodes_of_stages;
  plan.model = profile.model;
  plan.graph_digest = profile.graph_digest;
  plan.device_passes = profile.device_passes();
  plan.frozen_layers = profile.frozen.layers;
  const LayerWeights layers(profile);
  for (const FoundStage& found : solution.stages) {
    Stage stage;
    const NodeSet nodes = states.states[found.to].done - states.states[found.from].done;
    for (size_t v = nodes.find_first(); v != NodeSet::npos; v = nodes.find_next(v)) {
      stage.nodes.push_back(profile.nodes[v].name);
    }
    if (found.recompute && found.kept_to >= 0)
      stage.recompute_ratio = static_cast<double>((nodes - states.states[found.kept_to].done).count()) /
                              static_cast<double>(nodes.count());
    nodes_of_stages.push_back(nodes);
    stage.layers = layers.of(stage.nodes);
    stage.ranks = found.ranks;
    stage.shares = found.shares;
    stage.frozen = states.states[found.to].frozen;
    stage.recompute = found.recompute && !stage.frozen;
    if (stage.ranks.empty()) {
      stage.ranks.resize(found.replicas);
      std::iota(stage.ranks.begin(), stage.ranks.end(), plan.world_size);
    }
    plan.world_size += found.replicas;
    plan.stages.push_back(std::move(stage));
  }
  plan.tied_parameters = tied_parameters(split_groups(states.ties, nodes_of_stages));
  return plan;
}

}  // namespace pipewright

#include "optimizer/plan/stage_layers.h"

#include <utility>

namespace pipewright {
namespace {

constexpr double kWeighs = 0.1;

}  // namespace

LayerWeights::LayerWeights(const Profile& profile) {
  for (const ProfiledNode& node : profile.nodes) {
    nodes_[node.name] = &node;
    Weight& weight = layers_[node.layer];
    weight.seconds += node.compute_seconds();
    weight.parameter_bytes += node.parameter_bytes;
  }
}

std::vector<std::string> LayerWeights::of(const std::vector<std::string>& nodes) const {
  std::vector<std::string> order;
  std::map<std::string, Weight> held;
  for (const std::string& name : nodes) {
    const auto node = nodes_.find(name);
    if (node == nodes_.end() || node->second->layer.empty()) continue;
    const auto [entry, fresh] = held.try_emplace(node->second->layer);
    if (fresh) order.push_back(entry->first);
    entry->second.seconds += node->second->compute_seconds();
    entry->second.parameter_bytes += node->second->parameter_bytes;
  }
  std::vector<std::string> named;
  for (const std::string& layer : order) {
    const Weight& here = held.at(layer);
    const Weight& whole = layers_.at(layer);
    const bool time = whole.seconds > 0 && here.seconds >= kWeighs * whole.seconds;
    const bool parameters =
        whole.parameter_bytes > 0 &&
        static_cast<double>(here.parameter_bytes) >= kWeighs * static_cast<double>(whole.parameter_bytes);
    if (time || parameters) named.push_back(layer);
  }
  return named.empty() ? order : named;
}

Plan with_layers(Plan plan, const Profile& profile) {
  const LayerWeights layers(profile);
  for (Stage& stage : plan.stages)
    if (auto names = layers.of(stage.nodes); !names.empty()) stage.layers = std::move(names);
  return plan;
}

}  // namespace pipewright

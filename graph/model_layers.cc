#include "graph/model_layers.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"

namespace pipewright {
namespace {

struct NodeOfLayer {
  std::string path;
  bool has_parameters = false;
};

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (end > begin) parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_numbered(const std::string& part) {
  const size_t digits = part.size() - std::min(part.size(), part.find_last_not_of("0123456789") + 1);
  return digits > 0 && (digits == part.size() || part[part.size() - digits - 1] == '_');
}

std::string joined(const std::vector<std::string>& parts, size_t count) {
  std::string path;
  for (size_t i = 0; i < std::min(count, parts.size()); ++i) path += (path.empty() ? "" : ".") + parts[i];
  return path;
}

// By node: the module that it counts with, "" of none.
using Modules = std::vector<std::string>;

Modules numbered_modules(const std::vector<NodeOfLayer>& nodes) {
  Modules modules;
  for (const NodeOfLayer& node : nodes) modules.push_back(numbered_module(node.path));
  return modules;
}

Modules modules_at(const std::vector<NodeOfLayer>& nodes, size_t depth) {
  Modules modules;
  for (const NodeOfLayer& node : nodes) modules.push_back(joined(parts_of(node.path), depth));
  return modules;
}

std::set<std::string> with_parameters(const std::vector<NodeOfLayer>& nodes, const Modules& modules) {
  std::set<std::string> names;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].has_parameters && !modules[i].empty()) names.insert(modules[i]);
  return names;
}

Modules modules_of(const std::vector<NodeOfLayer>& nodes) {
  constexpr size_t kFewModules = 2, kManyModules = 4, kDeepest = 8;
  Modules modules = numbered_modules(nodes);
  if (with_parameters(nodes, modules).size() >= kFewModules) return modules;
  for (size_t depth = 1; depth <= kDeepest; ++depth) {
    modules = modules_at(nodes, depth);
    if (with_parameters(nodes, modules).size() >= kManyModules) break;
  }
  return modules;
}

// Moved behind the sets that it would divide.
size_t outside_sets(size_t end, const std::vector<std::pair<size_t, size_t>>& sets) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [first, last] : sets) {
      if (first >= end || last < end) continue;
      end = last + 1;
      moved = true;
    }
  }
  return end;
}

std::vector<ModelLayer> layers_of(const std::vector<NodeOfLayer>& nodes,
                                  const std::vector<std::pair<size_t, size_t>>& sets) {
  const Modules modules = modules_of(nodes);
  const std::set<std::string> counted = with_parameters(nodes, modules);
  std::vector<ModelLayer> layers;
  std::set<std::string> seen;
  size_t last_with_parameters = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].has_parameters) last_with_parameters = i;
    if (counted.count(modules[i]) == 0 || !seen.insert(modules[i]).second) continue;
    if (!layers.empty()) layers.back().end = i;
    layers.push_back({modules[i], i});
  }
  if (layers.empty()) return {};
  // The last one, and the head.
  for (size_t i = 0; i < nodes.size(); ++i)
    if (modules[i] == layers.back().name) layers.back().end = i + 1;
  if (layers.back().end > last_with_parameters) layers.pop_back();
  for (ModelLayer& layer : layers) layer.end = outside_sets(layer.end, sets);
  while (!layers.empty() && layers.back().end > last_with_parameters) layers.pop_back();
  return layers;
}

std::vector<std::pair<size_t, size_t>> extents_of(const std::vector<std::vector<std::string>>& sets,
                                                  const std::map<std::string, size_t>& position) {
  std::vector<std::pair<size_t, size_t>> extents;
  for (const auto& set : sets) {
    std::pair<size_t, size_t> extent = {SIZE_MAX, 0};
    for (const std::string& name : set) {
      extent.first = std::min(extent.first, position.at(name));
      extent.second = std::max(extent.second, position.at(name));
    }
    extents.push_back(extent);
  }
  return extents;
}

}  // namespace

std::string numbered_module(const std::string& path) {
  const std::vector<std::string> parts = parts_of(path);
  const auto numbered = std::find_if(parts.begin(), parts.end(), is_numbered);
  return numbered == parts.end() ? "" : joined(parts, static_cast<size_t>(numbered - parts.begin()) + 1);
}

std::vector<ModelLayer> model_layers(const Graph& graph) {
  std::set<std::string> parameters;
  for (const Parameter& parameter : graph.parameters) parameters.insert(parameter.name);
  std::vector<NodeOfLayer> nodes;
  std::map<std::string, size_t> position;
  for (const Node& node : graph.nodes) {
    const auto reads = node.reads();
    const bool has = std::any_of(reads.begin(), reads.end(),
                                 [&](const std::string& name) { return parameters.count(name) > 0; });
    position[node.name] = nodes.size();
    nodes.push_back({node.layer, has});
  }
  return layers_of(nodes, extents_of(graph.together, position));
}

std::vector<ModelLayer> model_layers(const Profile& profile) {
  std::vector<NodeOfLayer> nodes;
  std::map<std::string, size_t> position;
  for (const ProfiledNode& node : profile.nodes) {
    position[node.name] = nodes.size();
    nodes.push_back({node.layer, node.parameter_bytes > 0});
  }
  return layers_of(nodes, extents_of(profile.together, position));
}

size_t end_of_layers(const std::vector<ModelLayer>& layers, int64_t count, const std::string& where) {
  if (count == 0) return 0;
  if (count < 0 || count > static_cast<int64_t>(layers.size())) {
    throw InputError(where + ": " + std::to_string(count) + " layers cannot be frozen: the model has " +
                         std::to_string(layers.size()) + ", its head not counted",
                     "docs/freezing.md says what a layer is.");
  }
  return layers[static_cast<size_t>(count) - 1].end;
}

}  // namespace pipewright

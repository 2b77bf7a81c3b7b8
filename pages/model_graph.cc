#include "pages/model_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "graph/units.h"

namespace pipewright {
namespace {

/// By their places in Model::nodes.
using Places = std::set<size_t>;

struct Placed {
  size_t stage = 0;
  const ProfiledNode* node = nullptr;
  Places makers, readers;  ///< of what it reads, and of what it makes
};
struct Value {
  int64_t bytes = 0;
  size_t maker = 0;
  Places readers;
};
/// The nodes of the plan, stage by stage, and what they make.
struct Model {
  std::vector<Placed> nodes;
  std::map<std::string, Value> values;
};

Model model_of(const Plan& plan, const Profile& profile) {
  std::map<std::string, const ProfiledNode*> named;
  for (const ProfiledNode& node : profile.nodes) named[node.name] = &node;
  Model model;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& name : plan.stages[s].nodes) {
      const auto found = named.find(name);
      if (found == named.end()) continue;
      const size_t here = model.nodes.size();
      model.nodes.push_back({s, found->second, {}, {}});
      for (const ProfiledValue& value : found->second->outputs)
        model.values[value.name] = {value.bytes, here, {}};
      for (const std::string& value : found->second->inputs) {
        const auto read = model.values.find(value);
        if (read == model.values.end()) continue;  // an input of the graph
        read->second.readers.insert(here);
        model.nodes[here].makers.insert(read->second.maker);
        model.nodes[read->second.maker].readers.insert(here);
      }
    }
  }
  return model;
}

/// Nodes that are drawn as one.
struct Unit {
  size_t stage = 0;
  std::vector<const ProfiledNode*> nodes;
  std::map<size_t, int64_t> sends;  ///< bytes by the unit that reads them
};

enum class Folded { kNot, kChains, kLayers };

/// By node the unit that it is in. Units stand in the order of their first nodes, so values flow to later
/// ones.
std::vector<size_t> folded(const std::vector<Placed>& nodes, Folded how) {
  std::vector<size_t> unit_of;
  size_t units = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Placed& node = nodes[i];
    const size_t maker = node.makers.size() == 1 ? *node.makers.begin() : i;
    if (how == Folded::kChains && maker < i && nodes[maker].readers.size() == 1 &&
        nodes[maker].stage == node.stage)
      unit_of.push_back(unit_of[maker]);
    else if (how == Folded::kLayers && i > 0 && !node.node->layer.empty() &&
             nodes[i - 1].node->layer == node.node->layer && nodes[i - 1].stage == node.stage)
      unit_of.push_back(unit_of.back());
    else
      unit_of.push_back(units++);
  }
  return unit_of;
}

std::vector<Unit> units_of(const Model& model) {
  constexpr size_t kMostUnits = 300;
  std::vector<size_t> unit_of;
  size_t count = 0;
  for (const Folded how : {Folded::kNot, Folded::kChains, Folded::kLayers}) {
    unit_of = folded(model.nodes, how);
    count = unit_of.empty() ? 0 : 1 + *std::max_element(unit_of.begin(), unit_of.end());
    if (count <= kMostUnits) break;
  }
  std::vector<Unit> units(count);
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    units[unit_of[i]].stage = model.nodes[i].stage;
    units[unit_of[i]].nodes.push_back(model.nodes[i].node);
  }
  for (const auto& [name, value] : model.values) {
    Places to;  // once, however many nodes of a unit read it
    for (const size_t reader : value.readers) to.insert(unit_of[reader]);
    to.erase(unit_of[value.maker]);
    for (const size_t other : to) units[unit_of[value.maker]].sends[other] += value.bytes;
  }
  return units;
}

/// By cut; what is made in a stage and read in a later one crosses every cut between.
std::vector<int64_t> crossing_bytes(const Model& model, size_t stages) {
  std::vector<int64_t> cut(stages, 0);
  for (const auto& [name, value] : model.values) {
    if (value.readers.empty()) continue;
    // Stages stand one behind the other in the nodes: the last reader is in the last stage that reads.
    for (size_t s = model.nodes[value.maker].stage; s < model.nodes[*value.readers.rbegin()].stage; ++s)
      cut[s] += value.bytes;
  }
  return cut;
}

std::string name_of(const Unit& unit) {
  const std::string first = unit.nodes.front()->name;
  return unit.nodes.size() == 1 ? first
                                : first + " .. " + unit.nodes.back()->name + " (" +
                                      std::to_string(unit.nodes.size()) + " nodes)";
}

}  // namespace

Svg model_graph(const Plan& plan, const Profile& profile) {
  constexpr double kBox = 14, kPitch = 22, kCut = 84, kLeft = 8, kMostRise = 90;
  const Model model = model_of(plan, profile);
  const std::vector<Unit> units = units_of(model);
  const std::vector<int64_t> cut = crossing_bytes(model, plan.stages.size());
  // A neighbour is reached straight on, others by an arc above those between, which gets to 3/4 of its rise.
  const auto rise_of = [&](size_t from, size_t to) {
    return to == from + 1 ? 0.0 : std::min(kMostRise, 8 + 6 * static_cast<double>(to - from));
  };
  double x = kLeft, rise = 0;
  std::vector<double> left;  // by unit
  for (size_t u = 0; u < units.size(); ++u, x += kPitch) {
    if (u > 0 && units[u].stage != units[u - 1].stage) x += kCut;
    left.push_back(x);
    for (const auto& [to, bytes] : units[u].sends) rise = std::max(rise, rise_of(u, to));
  }
  const double top = 36 + 0.75 * rise;
  Svg svg(x + kCut, top + kBox + 26,
          plan.model + ": " + std::to_string(model.nodes.size()) + " nodes in " +
              std::to_string(plan.stages.size()) + (plan.stages.size() == 1 ? " stage" : " stages"));
  const auto point = [](double at, double y) { return svg_number(at) + " " + svg_number(y); };
  for (size_t u = 0; u < units.size(); ++u) {
    for (const auto& [to, bytes] : units[u].sends) {
      const double from_x = left[u] + kBox / 2, to_x = left[to] + kBox / 2, y = top - rise_of(u, to);
      const std::string way = to == u + 1
                                  ? "M" + point(left[u] + kBox, top + kBox / 2) + "H" + svg_number(left[to])
                                  : "M" + point(from_x, top) + "C" + point(from_x, y) + " " + point(to_x, y) +
                                        " " + point(to_x, top);
      svg.path(
          way, units[to].stage == units[u].stage ? line_look(units[u].stage) : "arrow",
          name_of(units[u]) + " to " + name_of(units[to]) + ": " + format_bytes(static_cast<double>(bytes)));
    }
  }
  for (size_t u = 0; u < units.size(); ++u) {
    double forward = 0, backward = 0;
    for (const ProfiledNode* node : units[u].nodes) {
      forward += node->forward_seconds;
      backward += node->backward_seconds();
    }
    svg.area(left[u], top, kBox, kBox, area_look(units[u].stage),
             name_of(units[u]) + ": forward " + format_seconds(forward) + ", backward " +
                 format_seconds(backward));
    if (u > 0 && units[u].stage == units[u - 1].stage) continue;
    svg.text(left[u], top + kBox + 18, "stage " + std::to_string(units[u].stage));
    if (u == 0) continue;
    const double middle = (left[u - 1] + kBox + left[u]) / 2;
    svg.text(middle, 16, format_bytes(static_cast<double>(cut[units[u].stage - 1])), "ink",
             Svg::Anchor::kMiddle);
    svg.line(middle, 24, middle, top + kBox + 6, "mark");
  }
  return svg;
}

}  // namespace pipewright

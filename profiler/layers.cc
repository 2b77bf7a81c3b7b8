#include "profiler/layers.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "graph/units.h"

namespace pipewright {
namespace {

const std::string& layer_name(const ProfiledNode& node) {
  return node.layer.empty() ? node.name : node.layer;
}

std::map<std::string, size_t> layer_positions(const Profile& profile) {
  std::map<std::string, size_t> positions;
  for (const auto& node : profile.nodes) positions.emplace(layer_name(node), positions.size());
  return positions;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * fraction);
  return text;
}

bool has_launch_seconds(const std::vector<LayerCost>& layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerCost& layer) { return layer.launch_seconds.has_value(); });
}

std::string provenance(const Profile& profile, const std::string& key) {
  for (const auto& [name, value] : profile.provenance)
    if (name == key) return value;
  return "";
}

}  // namespace

std::vector<LayerCost> layer_costs(const Profile& profile) {
  const auto positions = layer_positions(profile);
  std::vector<LayerCost> layers(positions.size());
  std::map<std::string, size_t> maker;           // layer of each value
  std::map<std::string, bool> leaves_its_layer;  // and is it read elsewhere, or by nobody?
  std::set<std::string> seen_parameters;
  for (const auto& node : profile.nodes) {
    for (const auto& value : node.outputs) {
      maker[value.name] = positions.at(layer_name(node));
      leaves_its_layer[value.name] = true;
    }
  }
  std::set<std::string> read;
  for (const auto& node : profile.nodes) {
    for (const auto& name : node.inputs) {
      const auto made = maker.find(name);
      if (made == maker.end()) continue;
      const bool elsewhere = made->second != positions.at(layer_name(node));
      leaves_its_layer[name] = elsewhere || (read.count(name) && leaves_its_layer[name]);
      read.insert(name);
    }
  }

  double total = 0;
  for (const auto& node : profile.nodes) {
    LayerCost& layer = layers[positions.at(layer_name(node))];
    layer.name = layer_name(node);
    ++layer.nodes;
    layer.forward_seconds += node.forward_seconds;
    layer.backward_input_seconds += node.backward_input_seconds;
    layer.backward_weight_seconds += node.backward_weight_seconds;
    layer.saved_bytes += node.saved_bytes;
    layer.spread += node.spread * node.compute_seconds();
    if (const auto launch = node.launch_seconds())
      layer.launch_seconds = layer.launch_seconds.value_or(0) + *launch;
    for (const auto& value : node.outputs)
      if (leaves_its_layer[value.name]) layer.output_bytes += value.bytes;
    bool tied = false;
    for (const auto& name : node.parameters) tied = !seen_parameters.insert(name).second || tied;
    if (!tied) layer.parameter_bytes += node.parameter_bytes;
    total += node.compute_seconds();
  }
  for (auto& layer : layers) {
    layer.share = total > 0 ? layer.compute_seconds() / total : 0;
    layer.spread = layer.compute_seconds() > 0 ? layer.spread / layer.compute_seconds() : 0;
  }
  return layers;
}

std::vector<LayerEdge> layer_edges(const Profile& profile) {
  const auto positions = layer_positions(profile);
  std::map<std::string, std::pair<size_t, int64_t>> made;  // layer and bytes of each value
  for (const auto& node : profile.nodes)
    for (const auto& value : node.outputs) made[value.name] = {positions.at(layer_name(node)), value.bytes};
  std::map<std::pair<size_t, size_t>, std::set<std::string>> crossing;
  for (const auto& node : profile.nodes) {
    const size_t to = positions.at(layer_name(node));
    for (const auto& name : node.inputs)
      if (const auto from = made.find(name); from != made.end() && from->second.first != to)
        crossing[{from->second.first, to}].insert(name);
  }
  std::vector<LayerEdge> edges;
  for (const auto& [ends, names] : crossing) {
    LayerEdge edge{ends.first, ends.second, 0};
    for (const auto& name : names) edge.bytes += made.at(name).second;
    edges.push_back(edge);
  }
  return edges;
}

TextTable layer_table(const Profile& profile) {
  const auto side = TableColumn::Side::kRight;
  const std::vector<LayerCost> layers = layer_costs(profile);
  const bool of_device = has_launch_seconds(layers);
  // What says least goes first where lines are too wide.
  std::vector<TableColumn> columns = {{"layer", TableColumn::Side::kLeft, 0, 12},
                                      {"nodes", side, 5},
                                      {"forward", side},
                                      {"backward", side},
                                      {"output", side, 1},
                                      {"saved", side, 3},
                                      {"parameters", side, 2},
                                      {"share", side},
                                      {"spread", side, 4}};
  if (of_device) {
    columns.push_back({"launch", side, 2});
    columns.push_back({"bound by", side});
  }
  TextTable table(columns);
  const auto row = [&](const LayerCost& layer, const std::string& output) {
    std::vector<std::string> cells = {layer.name,
                                      std::to_string(layer.nodes),
                                      format_seconds(layer.forward_seconds),
                                      format_seconds(layer.backward_seconds()),
                                      output,
                                      format_bytes(static_cast<double>(layer.saved_bytes)),
                                      format_bytes(static_cast<double>(layer.parameter_bytes)),
                                      percent(layer.share),
                                      percent(layer.spread)};
    if (of_device) {
      cells.push_back(format_seconds(layer.launch_seconds.value_or(0)));
      cells.emplace_back(layer.is_launch_bound() ? "launch" : "device");
    }
    table.add(std::move(cells));
  };
  LayerCost total;
  total.name = "total";
  for (const LayerCost& layer : layers) {
    row(layer, format_bytes(static_cast<double>(layer.output_bytes)));
    if (of_device) total.launch_seconds = total.launch_seconds.value_or(0) + layer.launch_seconds.value_or(0);
    total.nodes += layer.nodes;
    total.forward_seconds += layer.forward_seconds;
    total.backward_input_seconds += layer.backward_input_seconds;
    total.backward_weight_seconds += layer.backward_weight_seconds;
    total.saved_bytes += layer.saved_bytes;
    total.parameter_bytes += layer.parameter_bytes;
    total.share += layer.share;
    total.spread += layer.spread * layer.share;
  }
  row(total, "");  // outputs of layers do not add up to anything
  return table;
}

namespace {

/// What training beside others takes, and how much of that is the machine's other load.
std::string crowd_text(const ProfiledCrowd& crowd) {
  const auto times = [](double factor) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", factor);
    return std::string(text);
  };
  const int64_t others = crowd.ranks - 1;
  std::string text = "beside " + std::to_string(others) + (others == 1 ? " other: " : " others: ") +
                     times(crowd.compute_factor) + " times as long (as replicas in step " +
                     times(crowd.replicas_compute_factor) + ", their updates " +
                     times(crowd.replicas_update_factor) + "; by turns " +
                     times(crowd.by_turns_compute_factor) + ")";
  constexpr double kWorthTelling = 1.05;
  if (crowd.clock_factor > kWorthTelling * crowd.compute_factor)
    text += "; by the clock " + times(crowd.clock_factor) + " times, waits for cores that other programs had";
  return text;
}

}  // namespace

std::vector<std::string> headlines(const Profile& profile) {
  std::string what = profile.model;
  if (profile.minibatch_samples > 0) what += ", minibatches of " + std::to_string(profile.minibatch_samples);
  what += ", " + profile.device + ", " + std::to_string(profile.threads) +
          (profile.threads == 1 ? " thread" : " threads");
  for (const char* key : {"processor", "date"})
    if (const std::string value = provenance(profile, key); !value.empty()) what += ", " + value;

  const ProfiledWhole& whole = profile.whole;
  const double passes = whole.forward_seconds + whole.backward_seconds;
  std::vector<std::string> lines = {what};
  const std::string parts = provenance(profile, "parts");
  lines.push_back("whole model, measured in " + (parts.empty() ? "one piece" : parts + " parts") +
                  ": forward " + format_seconds(whole.forward_seconds) + ", backward " +
                  format_seconds(whole.backward_seconds) + ", weight update " +
                  format_seconds(whole.step_seconds));
  if (profile.input_seconds > 0)
    lines.push_back("to make one minibatch of input: " + format_seconds(profile.input_seconds));
  const double nodes = launched_seconds(profile.nodes).sum();
  if (passes > 0)
    lines.push_back("sum of its nodes: " + format_seconds(nodes) + ", " + percent(nodes / passes) +
                    " of the " + format_seconds(passes) + " of forward and backward" +
                    (whole.known_within ? ", known within " + percent(*whole.known_within) : ""));
  const std::vector<LayerCost> layers = layer_costs(profile);
  if (has_launch_seconds(layers)) {
    int64_t bound = 0;
    double share = 0;
    for (const LayerCost& layer : layers) {
      if (!layer.is_launch_bound()) continue;
      ++bound;
      share += layer.share;
    }
    lines.push_back("launch-bound: " + std::to_string(bound) + " of " + std::to_string(layers.size()) +
                    (layers.size() == 1 ? " layer, " : " layers, ") + percent(share) + " of the nodes' time");
  }
  if (whole.crowd) lines.push_back(crowd_text(*whole.crowd));
  if (whole.allocated_bytes)
    lines.push_back("the device's allocator gave out at most " +
                    format_bytes(static_cast<double>(*whole.allocated_bytes)) +
                    " in forward and backward, beside weights and minibatch");
  return lines;
}

std::string layer_text(const Profile& profile, int64_t width) { return layer_table(profile).text(width); }

}  // namespace pipewright

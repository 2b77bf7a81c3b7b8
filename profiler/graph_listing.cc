#include "profiler/graph_listing.h"

#include <map>
#include <sstream>

namespace pipewright {
namespace {

std::string quoted(const std::string& text) {
  std::string plain = "\"";
  for (const char c : text) plain += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  return plain + "\"";
}

std::string operator_text(const Node& node) {
  return node.overload.empty() ? node.op : node.op + "." + node.overload;
}

}  // namespace

std::string with_thousands(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t place = static_cast<int64_t>(digits.size()) - 3; place > (number < 0 ? 1 : 0); place -= 3)
    digits.insert(static_cast<size_t>(place), " ");
  return digits;
}

std::string type_text(const TensorType& type) {
  std::string text = type.dtype == "float32" ? "(" : type.dtype + " (";
  for (size_t i = 0; i < type.shape.size(); ++i) text += (i ? ", " : "") + std::to_string(type.shape[i]);
  return text + ")";
}

std::string graph_listing(const Graph& graph, int64_t width) {
  std::map<std::string, int64_t> elements;
  int64_t parameters = 0, trainable = 0;
  for (const auto& parameter : graph.parameters) {
    elements[parameter.name] = parameter.type.elements();
    parameters += parameter.type.elements();
    if (parameter.trainable) trainable += parameter.type.elements();
  }
  std::ostringstream out;
  out << graph.name << ": " << graph.nodes.size() << " nodes, " << with_thousands(parameters)
      << " parameters in " << graph.parameters.size() << " tensors";
  if (trainable != parameters) out << " (" << with_thousands(trainable) << " trainable)";
  out << ", " << graph.buffers.size() << " buffers\n";
  for (const auto& name : graph.inputs)
    out << "input   " << name << " " << type_text(graph.values.at(name)) << "\n";
  for (const auto& name : graph.outputs)
    out << "output  " << name << " " << type_text(graph.values.at(name)) << "\n";
  const std::string head = wrapped(out.str(), width, 2) + "\n";

  const auto left = TableColumn::Side::kLeft;
  TextTable table({{"layer", left, 0, 12},
                   {"parameters"},
                   {"node", left, 1, 8},
                   {"operator", left, 0, 16},
                   {"makes", left, 0, 12}});
  std::string layer;
  for (const auto& node : graph.nodes) {
    int64_t count = 0;
    for (const auto& name : node.reads())
      if (const auto found = elements.find(name); found != elements.end()) count += found->second;
    std::string made;
    for (const auto& name : node.outputs)
      made += (made.empty() ? "" : ", ") + type_text(graph.values.at(name));
    const bool again = node.layer == layer && !table.rows().empty();
    layer = node.layer;
    table.add(
        {again ? "" : layer, count == 0 ? "" : with_thousands(count), node.name, operator_text(node), made});
  }
  return head + table.text(width);
}

std::string graph_dot(const Graph& graph) {
  std::ostringstream out;
  out << "digraph model {\n  compound=true;\n  node [shape=box, fontname=\"Helvetica\"];\n"
      << "  edge [fontname=\"Helvetica\", fontsize=10];\n";
  std::map<std::string, std::string> maker;
  for (const auto& name : graph.inputs) {
    maker[name] = "input:" + name;
    out << "  " << quoted("input:" + name) << " [label=" << quoted(name) << ", shape=ellipse];\n";
  }
  std::map<std::string, std::vector<const Node*>> layers;
  std::vector<std::string> order;
  for (const auto& node : graph.nodes) {
    if (!layers.count(node.layer)) order.push_back(node.layer);
    layers[node.layer].push_back(&node);
    for (const auto& name : node.outputs) maker[name] = node.name;
  }
  for (size_t i = 0; i < order.size(); ++i) {
    out << "  subgraph cluster_" << i << " {\n    label=" << quoted(order[i])
        << "; fontname=\"Helvetica\";\n";
    for (const Node* node : layers[order[i]]) {
      std::string label = quoted(node->name);
      label.insert(label.size() - 1, "\\n" + operator_text(*node));
      out << "    " << quoted(node->name) << " [label=" << label << "];\n";
    }
    out << "  }\n";
  }
  for (const auto& node : graph.nodes)
    for (const auto& name : node.reads())
      if (const auto made = maker.find(name); made != maker.end())
        out << "  " << quoted(made->second) << " -> " << quoted(node.name)
            << " [label=" << quoted(type_text(graph.values.at(name))) << "];\n";
  out << "}\n";
  return out.str();
}

}  // namespace pipewright

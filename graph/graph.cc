#include "graph/graph.h"

#include <algorithm>

#include "graph/dtypes.h"
#include "graph/error.h"
#include "graph/graph_arguments.h"
#include "graph/limits.h"
#include "graph/node_sets.h"

namespace pipewright {
namespace {

TensorType type_from_json(JsonReader& reader) {
  TensorType type;
  type.dtype = reader.string_one_of("dtype", dtype_names());
  type.shape = reader.integers("shape", 0, kMostCount);
  if (bounded_bytes(type) < 0) reader.fail("shape", "more than 2^53 bytes");
  return type;
}

/// Of a node: whether the autocast of the graph holds for it, or the dtype of its own.
std::string autocast_from_json(JsonReader& entry) {
  if (entry.raw("autocast").is_boolean()) return entry.boolean("autocast") ? "" : "off";
  return entry.string_one_of("autocast", {"bfloat16", "float16"});
}

}  // namespace

int64_t TensorType::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    PW_CHECK(!__builtin_mul_overflow(count, extent, &count), "a shape that Graph::validate refuses");
  }
  return count;
}

std::string TensorType::text() const {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return dtype + " (" + join(extents, ", ") + ")";
}

std::vector<std::string> Node::reads() const {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (name.empty()) return;  // in a list of tensors: none
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const auto& [key, argument] : arguments) {
    if (const auto* tensor = std::get_if<TensorArgument>(&argument)) add(tensor->name);
    if (const auto* tensors = std::get_if<TensorsArgument>(&argument)) {
      for (const std::string& tensor_name : tensors->names) add(tensor_name);
    }
  }
  return names;
}

TensorType Graph::computed_type(const std::string& value) const {
  TensorType type = values.at(value);
  if (autocast) {
    const auto changed = autocast->find(value);
    if (changed != autocast->end()) type.dtype = changed->second;
  }
  return type;
}

Graph Graph::from_json(JsonReader& reader) {
  reader.expect({"schema", "name", "inputs", "outputs", "values", "parameters", "buffers", "nodes",
                 "together", "everywhere"});
  Graph graph;
  graph.name = reader.string("name");
  graph.inputs = reader.strings("inputs");
  graph.outputs = reader.strings("outputs");
  for (auto& [name, value] : reader.entries("values")) {
    value.expect({"dtype", "shape", "bytes"});
    const TensorType type = type_from_json(value);
    const int64_t bytes = value.integer("bytes", 0, kMostBytes);
    if (bytes != type.bytes()) {
      value.fail("bytes", "got " + std::to_string(bytes) + ", but dtype and shape make " +
                              std::to_string(type.bytes()));
    }
    value.finish();
    graph.values.emplace(name, type);
  }
  for (JsonReader& parameter : reader.objects("parameters")) {
    parameter.expect({"name", "dtype", "shape", "trainable"});
    graph.parameters.push_back(
        {parameter.string("name"), type_from_json(parameter), parameter.boolean("trainable")});
    parameter.finish();
  }
  for (JsonReader& buffer : reader.objects("buffers")) {
    buffer.expect({"name", "dtype", "shape"});
    graph.buffers.push_back({buffer.string("name"), type_from_json(buffer)});
    buffer.finish();
  }
  for (JsonReader& entry : reader.objects("nodes")) {
    entry.expect({"name", "operator", "overload", "arguments", "outputs", "layer", "gradient", "autocast"});
    Node node;
    node.name = entry.string("name");
    node.op = entry.string("operator");
    node.overload = entry.string("overload");
    for (auto& [name, argument] : entry.entries("arguments")) {
      node.arguments.emplace_back(name, argument_from_json(argument));
    }
    node.outputs = entry.strings("outputs");
    node.layer = entry.string("layer");
    if (entry.has("gradient")) node.gradient = entry.boolean("gradient");
    if (entry.has("autocast")) node.autocast = autocast_from_json(entry);
    entry.finish();
    graph.nodes.push_back(std::move(node));
  }
  graph.together = node_sets_from_json(reader, "together");
  if (reader.has("everywhere")) graph.everywhere = reader.strings("everywhere");
  return graph;
}

Json Graph::to_json() const {
  Json json;
  json["name"] = name;
  json["inputs"] = inputs;
  json["outputs"] = outputs;
  json["values"] = Json::object();
  // Appended to the container: nlohmann's [] searches, which is quadratic for thousands of values.
  Json::object_t::Container& members = json["values"].get_ref<Json::object_t&>();
  for (const auto& [value, type] : values) {
    members.emplace_back(value, Json{{"dtype", type.dtype}, {"shape", type.shape}, {"bytes", type.bytes()}});
  }
  json["parameters"] = Json::array();
  for (const Parameter& parameter : parameters) {
    json["parameters"].push_back({{"name", parameter.name},
                                  {"dtype", parameter.type.dtype},
                                  {"shape", parameter.type.shape},
                                  {"trainable", parameter.trainable}});
  }
  json["buffers"] = Json::array();
  for (const Buffer& buffer : buffers) {
    json["buffers"].push_back(
        {{"name", buffer.name}, {"dtype", buffer.type.dtype}, {"shape", buffer.type.shape}});
  }
  json["nodes"] = Json::array();
  for (const Node& node : nodes) {
    Json arguments = Json::object();
    for (const auto& [key, argument] : node.arguments) arguments[key] = argument_to_json(argument);
    json["nodes"].push_back({{"name", node.name},
                             {"operator", node.op},
                             {"overload", node.overload},
                             {"arguments", std::move(arguments)},
                             {"outputs", node.outputs},
                             {"layer", node.layer}});
    if (!node.gradient) json["nodes"].back()["gradient"] = false;
    if (node.autocast == "off") {
      json["nodes"].back()["autocast"] = false;
    } else if (!node.autocast.empty()) {
      json["nodes"].back()["autocast"] = node.autocast;
    }
  }
  if (!together.empty()) json["together"] = together;
  if (!everywhere.empty()) json["everywhere"] = everywhere;
  return json;
}

}  // namespace pipewright

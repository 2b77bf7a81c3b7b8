#include "graph/graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <unordered_map>

#include "graph/error.h"
#include "graph/limits.h"
#include "graph/nearest.h"
#include "graph/node_sets.h"

namespace pipewright {
namespace {

enum class NumberKind : uint8_t { kFloating, kComplex, kWhole };

struct DtypeRow {
  const char* name;
  int64_t bytes;
  NumberKind kind;
};
constexpr DtypeRow kDtypes[] = {
    {"float32", 4, NumberKind::kFloating},  {"float64", 8, NumberKind::kFloating},
    {"bfloat16", 2, NumberKind::kFloating}, {"float16", 2, NumberKind::kFloating},
    {"complex64", 8, NumberKind::kComplex}, {"int64", 8, NumberKind::kWhole},
    {"int32", 4, NumberKind::kWhole},       {"int16", 2, NumberKind::kWhole},
    {"int8", 1, NumberKind::kWhole},        {"uint8", 1, NumberKind::kWhole},
    {"bool", 1, NumberKind::kWhole},
};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeRow& row : kDtypes) names.emplace_back(row.name);
  return names;
}

const DtypeRow* find_dtype(const std::string& name) {
  const auto* row =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeRow& r) { return r.name == name; });
  return row == std::end(kDtypes) ? nullptr : row;
}

const DtypeRow& dtype_row(const std::string& name) {
  const DtypeRow* row = find_dtype(name);
  if (row == nullptr) throw InputError("unknown dtype " + in_quotes(name) + suggestion(name, dtype_names()));
  return *row;
}

// Bytes of the type, or -1 if they do not fit.
int64_t bounded_bytes(const TensorType& type) {
  if (std::find(type.shape.begin(), type.shape.end(), 0) != type.shape.end()) return 0;
  int64_t bytes = dtype_bytes(type.dtype);
  for (const int64_t extent : type.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMostBytes) return -1;
  }
  return bytes;
}

// Masks are filled with infinities, which JSON has not: arguments, and nothing else, spell them as strings.
Json float_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  return value;
}

double float_from_json(const Json& json, const std::string& where, const std::string& path) {
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  if (!json.is_number()) {
    fail_document(where, path, "got " + described(json) + R"(, expected a number, "inf", "-inf" or "nan")");
  }
  return json.get<double>();
}

Json argument_to_json(const Argument& argument) {
  struct Visitor {
    Json operator()(const NoneArgument&) const { return {{"none", true}}; }
    Json operator()(const TensorArgument& a) const { return {{"tensor", a.name}}; }
    Json operator()(const TensorsArgument& a) const { return {{"tensors", a.names}}; }
    Json operator()(const DtypeArgument& a) const { return {{"dtype", a.dtype}}; }
    Json operator()(bool a) const { return {{"bool", a}}; }
    Json operator()(int64_t a) const { return {{"int", a}}; }
    Json operator()(double a) const { return {{"float", float_to_json(a)}}; }
    Json operator()(const std::string& a) const { return {{"string", a}}; }
    Json operator()(const std::vector<int64_t>& a) const { return {{"ints", a}}; }
    Json operator()(const std::vector<double>& a) const {
      Json list = Json::array();
      for (const double value : a) list.push_back(float_to_json(value));
      return {{"floats", list}};
    }
    Json operator()(const std::vector<bool>& a) const { return {{"bools", a}}; }
  };
  return std::visit(Visitor{}, argument);
}

constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

std::vector<double> read_floats(JsonReader& reader) {
  const Json& list = reader.raw("floats");
  if (!list.is_array()) reader.fail("floats", "got " + described(list) + ", expected an array of numbers");
  std::vector<double> values;
  for (size_t i = 0; i < list.size(); ++i) {
    values.push_back(
        float_from_json(list[i], reader.where(), reader.place("floats") + "[" + std::to_string(i) + "]"));
  }
  return values;
}

std::vector<bool> read_bools(JsonReader& reader) {
  const Json& list = reader.raw("bools");
  if (!list.is_array())
    reader.fail("bools", "got " + described(list) + ", expected an array of true and false");
  std::vector<bool> values;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_boolean()) {
      fail_document(reader.where(), reader.place("bools") + "[" + std::to_string(i) + "]",
                    "got " + described(list[i]) + ", expected true or false");
    }
    values.push_back(list[i].get<bool>());
  }
  return values;
}

struct ArgumentRow {
  const char* key;
  std::function<Argument(JsonReader&)> read;
};

const std::vector<ArgumentRow>& argument_rows() {
  static const std::vector<ArgumentRow> rows = {
      {"none",
       [](JsonReader& r) {
         if (!r.boolean("none")) r.fail("none", "got false, expected true");
         return Argument(NoneArgument{});
       }},
      {"tensor", [](JsonReader& r) { return Argument(TensorArgument{r.string("tensor")}); }},
      {"tensors", [](JsonReader& r) { return Argument(TensorsArgument{r.strings("tensors")}); }},
      {"dtype",
       [](JsonReader& r) { return Argument(DtypeArgument{r.string_one_of("dtype", dtype_names())}); }},
      {"bool", [](JsonReader& r) { return Argument(r.boolean("bool")); }},
      {"int", [](JsonReader& r) { return Argument(r.integer("int", kMinInt, kMaxInt)); }},
      {"float",
       [](JsonReader& r) { return Argument(float_from_json(r.raw("float"), r.where(), r.place("float"))); }},
      {"string", [](JsonReader& r) { return Argument(r.string("string")); }},
      {"ints", [](JsonReader& r) { return Argument(r.integers("ints", kMinInt, kMaxInt)); }},
      {"floats", [](JsonReader& r) { return Argument(read_floats(r)); }},
      {"bools", [](JsonReader& r) { return Argument(read_bools(r)); }},
  };
  return rows;
}

Argument argument_from_json(JsonReader& reader) {
  std::vector<std::string> keys;
  const ArgumentRow* kind = nullptr;
  for (const ArgumentRow& row : argument_rows()) {
    keys.emplace_back(row.key);
    if (!reader.has(row.key)) continue;
    if (kind != nullptr) {
      reader.fail(
          "", std::string("has both '") + kind->key + "' and '" + row.key + "', expected one kind of value");
    }
    kind = &row;
  }
  reader.finish();
  if (kind == nullptr) reader.fail("", "has no value; expected one of " + join(keys, ", "));
  return kind->read(reader);
}

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

int64_t dtype_bytes(const std::string& dtype) { return dtype_row(dtype).bytes; }
bool dtype_is_floating(const std::string& dtype) { return dtype_row(dtype).kind == NumberKind::kFloating; }
bool dtype_has_gradients(const std::string& dtype) { return dtype_row(dtype).kind != NumberKind::kWhole; }

int64_t TensorType::elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    PW_CHECK(!__builtin_mul_overflow(count, extent, &count), "a shape that Graph::validate refuses");
  }
  return count;
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
  reader.expect(
      {"schema", "name", "inputs", "outputs", "values", "parameters", "buffers", "nodes", "together", "everywhere"});
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

namespace {

void validate_everywhere(const Graph& graph, const std::string& where) {
  std::map<std::string, size_t> position;  // of the names in `everywhere`
  for (size_t i = 0; i < graph.everywhere.size(); ++i) {
    if (!position.emplace(graph.everywhere[i], i).second) {
      fail_document(where, "everywhere[" + std::to_string(i) + "]",
                    in_quotes(graph.everywhere[i]) + " stands there twice");
    }
  }
  std::set<std::string> known(graph.inputs.begin(), graph.inputs.end());
  for (const Buffer& buffer : graph.buffers) known.insert(buffer.name);
  size_t found = 0;
  for (const Node& node : graph.nodes) {
    const auto listed = position.find(node.name);
    if (listed == position.end()) continue;
    ++found;
    for (const std::string& name : node.reads()) {
      if (known.count(name) != 0) continue;
      fail_document(where, "everywhere[" + std::to_string(listed->second) + "]",
                    "node " + in_quotes(node.name) + " reads " + in_quotes(name) +
                        "; expected inputs of the graph, buffers and what nodes of `everywhere` make");
    }
    known.insert(node.outputs.begin(), node.outputs.end());
  }
  if (found == graph.everywhere.size()) return;
  std::set<std::string> names;
  for (const Node& node : graph.nodes) names.insert(node.name);
  for (const auto& [name, i] : position) {
    if (names.count(name) != 0) continue;
    fail_document(where, "everywhere[" + std::to_string(i) + "]",
                  "there is no node " + in_quotes(name) + suggestion(name, {names.begin(), names.end()}));
  }
}

}  // namespace

void Graph::validate(const std::string& where) const {
  const auto place = [](const char* list, size_t i) {
    return std::string(list) + "[" + std::to_string(i) + "]";
  };

  // One name space for all tensors: where each is defined.
  std::unordered_map<std::string, std::string> defined;
  const auto define = [&](const std::string& tensor, const std::string& path) {
    if (tensor.empty()) fail_document(where, path, "the name of a tensor is empty");
    const auto [it, fresh] = defined.emplace(tensor, path);
    if (!fresh) fail_document(where, path, in_quotes(tensor) + " is defined already, in " + it->second);
  };
  const auto check_type = [&](const TensorType& type, const std::string& path) {
    if (find_dtype(type.dtype) == nullptr) {
      fail_document(where, path,
                    "unknown dtype " + in_quotes(type.dtype) + suggestion(type.dtype, dtype_names()));
    }
    if (bounded_bytes(type) < 0) fail_document(where, path, "a negative extent, or more than 2^53 bytes");
  };
  const auto check_value = [&](const std::string& value, const std::string& path) {
    if (values.count(value) == 0) fail_document(where, path, in_quotes(value) + " is not in `values`");
  };

  if (name.empty()) fail_document(where, "name", "empty");
  for (const auto& [value, type] : values) check_type(type, "values[" + in_quotes(value) + "]");
  for (size_t i = 0; i < inputs.size(); ++i) {
    define(inputs[i], place("inputs", i));
    check_value(inputs[i], place("inputs", i));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    define(parameters[i].name, place("parameters", i));
    check_type(parameters[i].type, place("parameters", i));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    define(buffers[i].name, place("buffers", i));
    check_type(buffers[i].type, place("buffers", i));
  }

  std::unordered_map<std::string, std::string> makers;  // value -> node, of the whole graph: for messages
  for (const Node& node : nodes) {
    for (const std::string& output : node.outputs) makers.emplace(output, node.name);
  }
  const auto known_tensors = [&] {
    std::vector<std::string> names;
    for (const auto& [tensor, path] : defined) names.push_back(tensor);
    std::sort(names.begin(), names.end());
    return names;
  };
  std::set<std::string> node_names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const std::string path = place("nodes", i);
    const std::string who = "node " + in_quotes(node.name);
    if (node.name.empty()) fail_document(where, path + ".name", "empty");
    if (!node_names.insert(node.name).second) fail_document(where, path + ".name", "there is another " + who);
    if (node.op.empty()) fail_document(where, path + ".operator", who + ": empty");
    std::set<std::string> argument_names;
    for (const auto& [key, argument] : node.arguments) {
      if (!argument_names.insert(key).second) {
        fail_document(where, path + ".arguments",
                      who + ": the argument " + in_quotes(key) + " is there twice");
      }
      if (const auto* dtype = std::get_if<DtypeArgument>(&argument)) {
        check_type({dtype->dtype, {}}, path + ".arguments." + key);
      }
    }
    for (const std::string& tensor : node.reads()) {
      if (defined.count(tensor) != 0) continue;
      const auto maker = makers.find(tensor);
      if (maker != makers.end()) {
        fail_document(
            where, path,
            who + " reads " + in_quotes(tensor) + " before node " + in_quotes(maker->second) + " makes it");
      }
      fail_document(where, path,
                    who + " reads " + in_quotes(tensor) + ", which nothing defines" +
                        suggestion(tensor, known_tensors()));
    }
    if (node.outputs.empty()) fail_document(where, path + ".outputs", who + " makes no value");
    for (const std::string& output : node.outputs) {
      define(output, path + ".outputs");
      check_value(output, path + ".outputs");
    }
  }
  validate_node_sets(together, node_names, where, "together");
  validate_everywhere(*this, where);
  for (const auto& [value, type] : values) {
    const auto it = defined.find(value);
    const bool made =
        it != defined.end() && it->second.rfind("parameters", 0) != 0 && it->second.rfind("buffers", 0) != 0;
    if (!made)
      fail_document(where, "values[" + in_quotes(value) + "]", "neither an input nor the output of a node");
  }
  if (outputs.empty()) fail_document(where, "outputs", "empty; expected the loss");
  for (size_t i = 0; i < outputs.size(); ++i) check_value(outputs[i], place("outputs", i));
}

}  // namespace pipewright

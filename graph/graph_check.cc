// Graph::validate.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/dtypes.h"
#include "graph/graph.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "graph/node_sets.h"

namespace pipewright {
namespace {

class GraphCheck {
 public:
  GraphCheck(const Graph& graph, const std::string& where) : graph_(graph), where_(where) {
    for (const Node& node : graph.nodes)
      for (const std::string& output : node.outputs) makers_.emplace(output, node.name);
  }

  void run() {
    if (graph_.name.empty()) fail("name", "empty");
    check_declared();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) check_node(graph_.nodes[i], list_element("nodes", i));
    validate_node_sets(graph_.together, node_names_, where_, "together");
    check_everywhere();
    check_values_are_made();
    if (graph_.outputs.empty()) fail("outputs", "empty; expected the loss");
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      check_value(graph_.outputs[i], list_element("outputs", i));
  }

 private:
  [[noreturn]] void fail(const std::string& path, const std::string& message) const {
    fail_document(where_, path, message);
  }

  void define(const std::string& tensor, const std::string& path) {
    if (tensor.empty()) fail(path, "the name of a tensor is empty");
    const auto [it, fresh] = defined_.emplace(tensor, path);
    if (!fresh) fail(path, in_quotes(tensor) + " is defined already, in " + it->second);
  }

  void check_type(const TensorType& type, const std::string& path) const {
    if (!is_dtype(type.dtype))
      fail(path, "unknown dtype " + in_quotes(type.dtype) + suggestion(type.dtype, dtype_names()));
    if (bounded_bytes(type) < 0) fail(path, "a negative extent, or more than 2^53 bytes");
  }

  void check_value(const std::string& value, const std::string& path) const {
    if (graph_.values.count(value) == 0) fail(path, in_quotes(value) + " is not in `values`");
  }

  void check_declared() {
    for (const auto& [value, type] : graph_.values) check_type(type, "values[" + in_quotes(value) + "]");
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      define(graph_.inputs[i], list_element("inputs", i));
      check_value(graph_.inputs[i], list_element("inputs", i));
    }
    for (size_t i = 0; i < graph_.parameters.size(); ++i) {
      define(graph_.parameters[i].name, list_element("parameters", i));
      check_type(graph_.parameters[i].type, list_element("parameters", i));
    }
    for (size_t i = 0; i < graph_.buffers.size(); ++i) {
      define(graph_.buffers[i].name, list_element("buffers", i));
      check_type(graph_.buffers[i].type, list_element("buffers", i));
    }
  }

  void check_node(const Node& node, const std::string& path) {
    const std::string who = "node " + in_quotes(node.name);
    if (node.name.empty()) fail(path + ".name", "empty");
    if (!node_names_.insert(node.name).second) fail(path + ".name", "there is another " + who);
    if (node.op.empty()) fail(path + ".operator", who + ": empty");
    check_arguments(node, path, who);
    for (const std::string& tensor : node.reads())
      if (defined_.count(tensor) == 0) fail_unknown_read(tensor, path, who);
    if (node.outputs.empty()) fail(path + ".outputs", who + " makes no value");
    for (const std::string& output : node.outputs) {
      define(output, path + ".outputs");
      check_value(output, path + ".outputs");
    }
  }

  void check_arguments(const Node& node, const std::string& path, const std::string& who) const {
    std::set<std::string> names;
    for (const auto& [key, argument] : node.arguments) {
      if (!names.insert(key).second)
        fail(path + ".arguments", who + ": the argument " + in_quotes(key) + " is there twice");
      if (const auto* dtype = std::get_if<DtypeArgument>(&argument))
        check_type({dtype->dtype, {}}, path + ".arguments." + key);
    }
  }

  [[noreturn]] void fail_unknown_read(const std::string& tensor, const std::string& path,
                                      const std::string& who) const {
    const std::string reads = who + " reads " + in_quotes(tensor);
    if (const auto maker = makers_.find(tensor); maker != makers_.end())
      fail(path, reads + " before node " + in_quotes(maker->second) + " makes it");
    std::vector<std::string> known;
    for (const auto& [name, defined_at] : defined_) known.push_back(name);
    std::sort(known.begin(), known.end());
    fail(path, reads + ", which nothing defines" + suggestion(tensor, known));
  }

  /// Nodes of `everywhere` exist, once each, and depend on nothing but each other, inputs and buffers.
  void check_everywhere() const {
    std::map<std::string, size_t> listed;  // place in `everywhere`
    for (size_t i = 0; i < graph_.everywhere.size(); ++i) {
      if (!listed.emplace(graph_.everywhere[i], i).second)
        fail(list_element("everywhere", i), in_quotes(graph_.everywhere[i]) + " stands there twice");
    }
    std::set<std::string> known(graph_.inputs.begin(), graph_.inputs.end());
    for (const Buffer& buffer : graph_.buffers) known.insert(buffer.name);
    for (const Node& node : graph_.nodes) {
      const auto found = listed.find(node.name);
      if (found == listed.end()) continue;
      for (const std::string& name : node.reads()) {
        if (known.count(name) == 0)
          fail(list_element("everywhere", found->second),
               "node " + in_quotes(node.name) + " reads " + in_quotes(name) +
                   "; expected inputs of the graph, buffers and what nodes of `everywhere` make");
      }
      known.insert(node.outputs.begin(), node.outputs.end());
    }
    for (const auto& [name, i] : listed) {
      if (node_names_.count(name) == 0)
        fail(list_element("everywhere", i), "there is no node " + in_quotes(name) +
                                                suggestion(name, {node_names_.begin(), node_names_.end()}));
    }
  }

  void check_values_are_made() const {
    for (const auto& [value, type] : graph_.values) {
      const auto it = defined_.find(value);
      const bool made = it != defined_.end() && it->second.rfind("parameters", 0) != 0 &&
                        it->second.rfind("buffers", 0) != 0;
      if (!made) fail("values[" + in_quotes(value) + "]", "neither an input nor the output of a node");
    }
  }

  const Graph& graph_;
  const std::string& where_;
  std::unordered_map<std::string, std::string> makers_;   // value -> node, of the whole graph: for messages
  std::unordered_map<std::string, std::string> defined_;  // one name space for all tensors: where each is
  std::set<std::string> node_names_;
};

}  // namespace

void Graph::validate(const std::string& where) const { GraphCheck(*this, where).run(); }

}  // namespace pipewright

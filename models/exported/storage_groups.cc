#include "models/exported/storage_groups.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "graph/error.h"
#include "models/run/operators.h"
#include "models/run/storages.h"

namespace pipewright {
namespace {

std::string fresh_name(const Graph& graph, std::string name) {
  const auto taken = [&] {
    const auto named = [&](const auto& one) { return one.name == name; };
    return graph.values.count(name) != 0 ||
           std::any_of(graph.parameters.begin(), graph.parameters.end(), named) ||
           std::any_of(graph.buffers.begin(), graph.buffers.end(), named) ||
           std::any_of(graph.nodes.begin(), graph.nodes.end(), named);
  };
  while (taken()) name += "_";
  return name;
}

void read_instead(Node& node, const std::string& name, const std::string& copy) {
  for (auto& [key, argument] : node.arguments) {
    if (auto* one = std::get_if<TensorArgument>(&argument); one != nullptr && one->name == name)
      one->name = copy;
    if (auto* many = std::get_if<TensorsArgument>(&argument))
      std::replace(many->names.begin(), many->names.end(), name, copy);
  }
}

/// A new node that copies `name`; the copy is a value of the graph.
Node clone_of(Graph& graph, const std::string& name, const TensorType& type) {
  Node clone;
  clone.name = fresh_name(graph, "clone_" + name);
  clone.op = "aten::clone";
  clone.arguments = {{"self", TensorArgument{name}}};
  clone.outputs = {clone.name};
  graph.values[clone.name] = type;
  return clone;
}

/// What the readers of an input that is written read instead: a copy, made first.
void copy_input(Graph& graph, const std::string& input) {
  Node clone = clone_of(graph, input, graph.values.at(input));
  for (Node& node : graph.nodes) read_instead(node, input, clone.name);
  std::replace(graph.outputs.begin(), graph.outputs.end(), input, clone.name);
  graph.nodes.insert(graph.nodes.begin(), std::move(clone));
}

/// A backward may need what a forward has read of a buffer that is written, as in `x * self.count`; by then
/// the forwards of later minibatches have written it. Where gradients may flow, a copy is read.
void copy_written_buffers(Graph& graph) {
  const Storages storages(graph);
  std::map<size_t, int64_t> writes;               // so far, of classes of buffers that are written
  std::map<size_t, std::set<size_t>> written_by;  // node -> classes
  std::set<size_t> buffers;
  for (const Buffer& buffer : graph.buffers) buffers.insert(storages.class_of(buffer.name));
  for (const auto& write : storages.writes()) {
    const size_t shared = storages.class_of(write.tensor);
    if (buffers.count(shared) == 0) continue;
    writes[shared] = 0;
    written_by[write.node].insert(shared);
  }
  if (writes.empty()) return;
  std::map<std::string, TensorType> types = graph.values;
  for (const Buffer& buffer : graph.buffers) types.emplace(buffer.name, buffer.type);
  std::map<std::pair<std::string, int64_t>, std::string> copies;  // of a tensor after so many writes
  std::vector<Node> nodes;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node node = graph.nodes[i];
    const std::set<size_t>& own = written_by[i];
    std::set<size_t> made;
    for (const std::string& name : node.outputs) made.insert(storages.class_of(name));
    const bool differentiable =
        node.gradient && std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& name) {
          return dtype_has_gradients(graph.values.at(name).dtype);
        });
    for (const std::string& name : node.reads()) {
      const size_t shared = storages.class_of(name);
      if (!differentiable || writes.count(shared) == 0 || own.count(shared) != 0 || made.count(shared) != 0)
        continue;
      const auto [copy, is_new] = copies.try_emplace({name, writes[shared]});
      if (is_new) {
        Node clone = clone_of(graph, name, types.at(name));
        clone.layer = node.layer;
        clone.gradient = false;
        copy->second = clone.name;
        nodes.push_back(std::move(clone));
      }
      read_instead(node, name, copy->second);
    }
    for (const size_t shared : own) ++writes[shared];
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

std::vector<std::string> written_inputs(const Graph& graph) {
  const Storages storages(graph);
  std::set<size_t> written;
  for (const auto& write : storages.writes()) written.insert(storages.class_of(write.tensor));
  std::vector<std::string> inputs;
  for (const std::string& name : graph.inputs) {
    if (written.count(storages.class_of(name)) != 0) inputs.push_back(name);
  }
  return inputs;
}

}  // namespace

Graph with_storage_groups(Graph graph) {
  for (const std::string& input : written_inputs(graph)) copy_input(graph, input);
  copy_written_buffers(graph);
  const Storages storages(graph);

  std::map<size_t, size_t>
      last_write;  // of each class that is written: the last node that does, or all to the end
  for (const auto& write : storages.writes()) last_write[storages.class_of(write.tensor)] = write.node;
  for (const Parameter& parameter : graph.parameters) {
    const size_t shared = storages.class_of(parameter.name);
    if (last_write.count(shared) == 0) continue;
    throw InputError(
        label_of(graph.nodes[last_write.at(shared)]) + " writes into parameter '" + parameter.name + "'",
        "Weights change by updates only: make it a buffer, or compute with a copy.");
  }
  for (const Buffer& buffer : graph.buffers) {
    if (const auto found = last_write.find(storages.class_of(buffer.name)); found != last_write.end())
      found->second = graph.nodes.size();
  }

  // Nodes of each set; a node may touch the memory of several.
  std::vector<size_t> set_of(graph.nodes.size());
  std::iota(set_of.begin(), set_of.end(), 0);
  const auto root = [&](size_t i) {
    while (set_of[i] != i) i = set_of[i];
    return i;
  };
  std::map<size_t, size_t> first_of_class;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    std::vector<std::string> touched = graph.nodes[i].reads();
    touched.insert(touched.end(), graph.nodes[i].outputs.begin(), graph.nodes[i].outputs.end());
    for (const std::string& name : touched) {
      const size_t storage = storages.class_of(name);
      const auto last = last_write.find(storage);
      if (last == last_write.end() || i > last->second) continue;
      const auto [first, fresh] = first_of_class.emplace(storage, i);
      if (!fresh) set_of[std::max(root(i), root(first->second))] = std::min(root(i), root(first->second));
    }
  }
  // A counter of minibatches depends on nothing: it goes with what comes next in its module.
  for (size_t i = 0; i + 1 < graph.nodes.size(); ++i) {
    const auto read = graph.nodes[i].reads();
    const bool counts = !read.empty() && std::all_of(read.begin(), read.end(), [&](const std::string& name) {
      return graph.values.count(name) == 0 && last_write.count(storages.class_of(name)) != 0;
    });
    if (counts && graph.nodes[i + 1].layer == graph.nodes[i].layer)
      set_of[std::max(root(i), root(i + 1))] = std::min(root(i), root(i + 1));
  }
  std::map<size_t, std::vector<std::string>> sets;
  for (size_t i = 0; i < graph.nodes.size(); ++i) sets[root(i)].push_back(graph.nodes[i].name);
  graph.together.clear();
  for (auto& [first, names] : sets) {
    if (names.size() > 1) graph.together.push_back(std::move(names));
  }
  return graph;
}

std::vector<std::vector<std::string>> storage_classes(const Graph& graph) {
  const Storages storages(graph);
  std::map<size_t, std::vector<std::string>> classes;
  const auto add = [&](const std::string& name) { classes[storages.class_of(name)].push_back(name); };
  for (const std::string& name : graph.inputs) add(name);
  for (const Parameter& parameter : graph.parameters) add(parameter.name);
  for (const Buffer& buffer : graph.buffers) add(buffer.name);
  for (const Node& node : graph.nodes) {
    for (const std::string& name : node.outputs) add(name);
  }
  std::vector<std::vector<std::string>> result;
  for (auto& [first, names] : classes) result.push_back(std::move(names));
  return result;
}

}  // namespace pipewright

#include "models/storage_groups.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "graph/error.h"
#include "models/operators.h"

namespace pipewright {
namespace {

/// Results that may be an argument itself, although the schema does not say so: operator and argument.
const std::map<std::string, std::string>& silent_views() {
  static const std::map<std::string, std::string> table = {
      {"aten::dropout", "input"},        {"aten::feature_dropout", "input"},
      {"aten::alpha_dropout", "input"},  {"aten::feature_alpha_dropout", "input"},
      {"aten::type_as", "self"},         {"aten::broadcast_tensors", "tensors"},
      {"aten::meshgrid", "tensors"},     {"aten::atleast_1d", "self"},
      {"aten::atleast_2d", "self"},      {"aten::atleast_3d", "self"},
      {"aten::einsum", "tensors"},       {"aten::pad", "self"},
      {"aten::constant_pad_nd", "self"}, {"aten::sum_to_size", "self"},
      {"aten::rrelu", "self"},
  };
  return table;
}

/// Arguments that are written although the schema does not say so: those of norms that train.
bool is_written_silently(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

const Argument* given(const Node& node, const std::string& name) {
  for (const auto& [key, argument] : node.arguments) {
    if (key == name) return &argument;
  }
  return nullptr;
}

std::vector<std::string> tensors_of(const Argument* argument) {
  if (argument == nullptr) return {};
  if (const auto* one = std::get_if<TensorArgument>(argument)) return {one->name};
  if (const auto* many = std::get_if<TensorsArgument>(argument)) {
    std::vector<std::string> names;
    std::copy_if(many->names.begin(), many->names.end(), std::back_inserter(names),
                 [](const std::string& name) { return !name.empty(); });
    return names;
  }
  return {};
}

template <typename Value>
bool is_given_as(const Node& node, const std::string& name, const Value& value) {
  const Argument* argument = given(node, name);
  const auto* literal = argument == nullptr ? nullptr : std::get_if<Value>(argument);
  return literal != nullptr && *literal == value;
}

/// Does a result that may be the argument itself come out as a new tensor after all? A dropout that drops
/// does.
bool makes_anew(const Node& node) { return is_given_as(node, "train", true) && !is_given_as(node, "p", 0.0); }

/// The alias sets that an argument or a result belongs to; of a list, those of its elements too.
std::set<at::Symbol> alias_sets(const c10::AliasInfo* info) {
  if (info == nullptr) return {};
  std::set<at::Symbol> sets(info->beforeSets().begin(), info->beforeSets().end());
  sets.insert(info->afterSets().begin(), info->afterSets().end());
  for (const c10::AliasInfo& contained : info->containedTypes()) {
    const auto more = alias_sets(&contained);
    sets.insert(more.begin(), more.end());
  }
  return sets;
}

bool is_list(const c10::Argument& returned) { return returned.type()->kind() == c10::TypeKind::ListType; }

/// Union-find over all tensors of a graph, and what is written when.
class Storages {
 public:
  explicit Storages(const Graph& graph) : graph_(graph) {
    for (const std::string& name : graph.inputs) add(name);
    for (const Parameter& parameter : graph.parameters) add(parameter.name);
    for (const Buffer& buffer : graph.buffers) add(buffer.name);
    for (const Node& node : graph.nodes) {
      for (const std::string& name : node.outputs) add(name);
    }
    for (size_t i = 0; i < graph.nodes.size(); ++i) look_at(i);
  }

  size_t class_of(const std::string& name) const {
    size_t i = position_.at(name);
    while (parent_[i] != i) i = parent_[i];
    return i;
  }

  /// A write: the node, and the tensor as the node names it.
  struct Write {
    size_t node;
    std::string tensor;
  };
  const std::vector<Write>& writes() const { return writes_; }

 private:
  void add(const std::string& name) {
    position_.emplace(name, parent_.size());
    parent_.push_back(parent_.size());
  }

  void join(const std::string& a, const std::string& b) { parent_[class_of(b)] = class_of(a); }

  void look_at(size_t number) {
    const Node& node = graph_.nodes[number];
    const c10::FunctionSchema& schema = find_operator(node).schema();
    const auto silent = silent_views().find(node.op);
    if (silent != silent_views().end() && !makes_anew(node)) {
      for (const std::string& name : tensors_of(given(node, silent->second))) {
        for (const std::string& output : node.outputs) join(name, output);
      }
    }
    for (const c10::Argument& argument : schema.arguments()) {
      const std::vector<std::string> names = tensors_of(given(node, argument.name()));
      const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
      if (written || is_written_silently(argument)) {
        for (const std::string& name : names) writes_.push_back({number, name});
      }
      const auto sets = alias_sets(argument.alias_info());
      if (sets.empty()) continue;
      size_t output = 0;
      for (const c10::Argument& returned : schema.returns()) {
        // A list takes all places that the other results leave.
        const size_t count = is_list(returned) ? node.outputs.size() + 1 - schema.returns().size() : 1;
        const auto theirs = alias_sets(returned.alias_info());
        const bool shares =
            std::any_of(theirs.begin(), theirs.end(), [&](auto set) { return sets.count(set) != 0; });
        for (size_t i = 0; i < count && output < node.outputs.size(); ++i, ++output) {
          if (!shares) continue;
          for (const std::string& name : names) join(name, node.outputs[output]);
        }
      }
    }
  }

  const Graph& graph_;
  std::unordered_map<std::string, size_t> position_;
  std::vector<size_t> parent_;
  std::vector<Write> writes_;
};

/// What the readers of an input that is written read instead: a copy, made first.
void copy_input(Graph& graph, const std::string& input) {
  std::string copy = "clone_" + input;
  const auto taken = [&](const std::string& name) {
    const auto named = [&](const auto& one) { return one.name == name; };
    return graph.values.count(name) != 0 ||
           std::any_of(graph.parameters.begin(), graph.parameters.end(), named) ||
           std::any_of(graph.buffers.begin(), graph.buffers.end(), named) ||
           std::any_of(graph.nodes.begin(), graph.nodes.end(), named);
  };
  while (taken(copy)) copy += "_";
  for (Node& node : graph.nodes) {
    for (auto& [key, argument] : node.arguments) {
      if (auto* one = std::get_if<TensorArgument>(&argument); one != nullptr && one->name == input)
        one->name = copy;
      if (auto* many = std::get_if<TensorsArgument>(&argument))
        std::replace(many->names.begin(), many->names.end(), input, copy);
    }
  }
  std::replace(graph.outputs.begin(), graph.outputs.end(), input, copy);
  Node clone;
  clone.name = copy;
  clone.op = "aten::clone";
  clone.arguments = {{"self", TensorArgument{input}}};
  clone.outputs = {copy};
  graph.values[copy] = graph.values.at(input);
  graph.nodes.insert(graph.nodes.begin(), std::move(clone));
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

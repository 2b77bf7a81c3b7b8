#include "models/run/storages.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/run/operators.h"

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
/// does; so does an einsum of two tensors or more, which multiplies them.
bool makes_anew(const Node& node) {
  if (node.op == "aten::einsum") return tensors_of(given(node, "tensors")).size() > 1;
  return is_given_as(node, "train", true) && !is_given_as(node, "p", 0.0);
}

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

}  // namespace

Storages::Storages(const Graph& graph) : graph_(graph) {
  for (const std::string& name : graph.inputs) add(name);
  for (const Parameter& parameter : graph.parameters) add(parameter.name);
  for (const Buffer& buffer : graph.buffers) add(buffer.name);
  for (const Node& node : graph.nodes) {
    for (const std::string& name : node.outputs) add(name);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) look_at(i);
}

size_t Storages::class_of(const std::string& name) const {
  size_t i = position_.at(name);
  while (parent_[i] != i) i = parent_[i];
  return i;
}

void Storages::add(const std::string& name) {
  position_.emplace(name, parent_.size());
  parent_.push_back(parent_.size());
}

void Storages::join(const std::string& a, const std::string& b) { parent_[class_of(b)] = class_of(a); }

void Storages::look_at(size_t number) {
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
    if (writes_argument(node, argument)) {
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

std::vector<std::string> buffers_read_back(const Graph& graph) {
  const Storages storages(graph);
  std::vector<std::string> found;
  for (const Buffer& buffer : graph.buffers) {
    const size_t memory = storages.class_of(buffer.name);
    const auto& writes = storages.writes();
    const bool written = std::any_of(writes.begin(), writes.end(), [&](const Storages::Write& write) {
      const std::string& op = graph.nodes[write.node].op;
      const bool norm =
          op.find("batch_norm") != std::string::npos || op.find("instance_norm") != std::string::npos;
      return !norm && storages.class_of(write.tensor) == memory;
    });
    if (!written) continue;
    std::set<std::string> made;  // of its numbers
    for (const Node& node : graph.nodes) {
      const auto read = node.reads();
      const bool reads = std::any_of(read.begin(), read.end(), [&](const std::string& name) {
        return made.count(name) > 0 || storages.class_of(name) == memory;
      });
      if (reads) made.insert(node.outputs.begin(), node.outputs.end());
    }
    if (std::any_of(graph.outputs.begin(), graph.outputs.end(),
                    [&](const auto& name) { return made.count(name) > 0; }))
      found.push_back(buffer.name);
  }
  return found;
}

}  // namespace pipewright

#include "profiler/synthetic_inputs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "models/run/random_key.h"
#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

const std::string* tensor_name(const Node& node, const std::string& argument) {
  for (const auto& [name, value] : node.arguments)
    if (name == argument)
      if (const auto* tensor = std::get_if<TensorArgument>(&value)) return &tensor->name;
  return nullptr;
}

const TensorType* type_of(const Graph& graph, const std::string& name) {
  if (const auto value = graph.values.find(name); value != graph.values.end()) return &value->second;
  for (const auto& parameter : graph.parameters)
    if (parameter.name == name) return &parameter.type;
  return nullptr;
}

/// Integers of input `name` lie in [0, limit): the smallest limit that a reader sets, or 2 when none is
/// known.
int64_t limit_of(const Graph& graph, const std::string& name) {
  int64_t limit = 0;
  const auto at_most = [&limit](int64_t bound) { limit = limit == 0 ? bound : std::min(limit, bound); };
  // Names that are this input in another shape.
  std::vector<std::string> same = {name};
  const auto is_same = [&same](const std::string* read) {
    return read && std::find(same.begin(), same.end(), *read) != same.end();
  };
  for (const auto& node : graph.nodes) {
    const std::string* weight = tensor_name(node, "weight");
    if (node.op == "aten::embedding" && weight && is_same(tensor_name(node, "indices"))) {
      if (const TensorType* rows = type_of(graph, *weight)) at_most(rows->shape.at(0));
    }
    const std::string* scores = tensor_name(node, "self");
    if (scores && is_same(tensor_name(node, "target"))) {
      const TensorType* type = type_of(graph, *scores);
      if (type && !type->shape.empty()) at_most(type->shape.size() > 1 ? type->shape[1] : type->shape[0]);
    } else if (node.outputs.size() == 1) {
      for (const auto& [argument, value] : node.arguments) {
        const auto* read = std::get_if<TensorArgument>(&value);
        if (!read || !is_same(&read->name)) continue;
        const TensorType* made = type_of(graph, node.outputs[0]);
        if (made && !dtype_is_floating(made->dtype)) same.push_back(node.outputs[0]);
      }
    }
  }
  return limit == 0 ? 2 : limit;
}

}  // namespace

std::vector<at::Tensor> synthetic_inputs(const Graph& graph, uint64_t seed) {
  std::vector<at::Tensor> inputs;
  for (const auto& name : graph.inputs) {
    const TensorType& type = graph.values.at(name);
    auto generator = at::detail::createCPUGenerator(stream_key(seed, 0, name_hash(name)));
    if (dtype_is_floating(type.dtype))
      inputs.push_back(at::randn(type.shape, generator).to(scalar_type_of(type.dtype)));
    else
      inputs.push_back(
          at::randint(0, type.dtype == "bool" ? 2 : limit_of(graph, name), type.shape, generator, at::kLong)
              .to(scalar_type_of(type.dtype)));
  }
  return inputs;
}

}  // namespace pipewright

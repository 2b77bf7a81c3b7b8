// Graphs written by hand, node by node, for tests.
#pragma once

#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "models/run/interpreter.h"

namespace pipewright::testing {

using Arguments = std::vector<std::pair<std::string, Argument>>;

inline TensorArgument tensor(const std::string& name) { return {name}; }

/// A node named like its only output.
inline Node node(const std::string& name, const std::string& op, Arguments arguments,
                 const std::string& overload = "") {
  return {name, op, overload, std::move(arguments), {name}, "layer_" + name};
}

/// A graph of `nodes`; the types of values, which the interpreter does not look at, are left empty.
inline Graph graph_of(std::vector<std::string> inputs,
                      std::vector<std::pair<std::string, std::vector<int64_t>>> parameters,
                      std::vector<Node> nodes, std::vector<std::string> outputs) {
  Graph graph;
  graph.name = "by hand";
  graph.inputs = std::move(inputs);
  graph.outputs = std::move(outputs);
  for (auto& [name, shape] : parameters)
    graph.parameters.push_back({name, {"float32", std::move(shape)}, true});
  for (const auto& name : graph.inputs) graph.values[name] = {};
  for (const auto& one : nodes)
    for (const auto& name : one.outputs) graph.values[name] = {};
  graph.nodes = std::move(nodes);
  return graph;
}

inline std::vector<size_t> range(size_t begin, size_t end) {
  std::vector<size_t> positions;
  for (size_t i = begin; i < end; ++i) positions.push_back(i);
  return positions;
}
inline std::vector<size_t> all_nodes(const Graph& graph) { return range(0, graph.nodes.size()); }

using Tensors = std::map<std::string, at::Tensor>;

inline std::vector<at::Tensor> pick(const Tensors& tensors, const std::vector<std::string>& names) {
  std::vector<at::Tensor> picked;
  for (const auto& name : names) picked.push_back(tensors.at(name));
  return picked;
}

/// Runs a segment on named tensors.
inline std::vector<at::Tensor> run(const Segment& segment, const Tensors& tensors, RandomKey key = {}) {
  return segment.forward(pick(tensors, segment.inputs()), pick(tensors, segment.parameters()),
                         pick(tensors, segment.buffers()), key);
}

/// images (4, 1, 8, 8) -> conv, batch norm, relu, dropout, a residual branch, pool, flatten, linear, loss.
/// Has what is hard to cut: two readers of one value, buffers written in place, a random node, an integer
/// input.
inline Graph small_convnet() {
  Graph graph = graph_of(
      {"images", "labels"},
      {{"conv1.weight", {3, 1, 3, 3}},
       {"conv1.bias", {3}},
       {"norm.weight", {3}},
       {"norm.bias", {3}},
       {"conv2.weight", {3, 3, 3, 3}},
       {"fc.weight", {5, 48}},
       {"fc.bias", {5}}},
      {node("conv1", "aten::conv2d",
            {{"input", tensor("images")},
             {"weight", tensor("conv1.weight")},
             {"bias", tensor("conv1.bias")},
             {"padding", std::vector<int64_t>{1, 1}}}),
       node("norm", "aten::batch_norm",
            {{"input", tensor("conv1")},
             {"weight", tensor("norm.weight")},
             {"bias", tensor("norm.bias")},
             {"running_mean", tensor("norm.running_mean")},
             {"running_var", tensor("norm.running_var")},
             {"training", true},
             {"momentum", 0.1},
             {"eps", 1e-5},
             {"cudnn_enabled", false}}),
       node("relu", "aten::relu", {{"self", tensor("norm")}}),
       node("dropout", "aten::dropout", {{"input", tensor("relu")}, {"p", 0.5}, {"train", true}}),
       node("conv2", "aten::conv2d",
            {{"input", tensor("dropout")}, {"weight", tensor("conv2.weight")}, {"padding", int64_t{1}}}),
       node("sum", "aten::add", {{"self", tensor("conv2")}, {"other", tensor("relu")}}, "Tensor"),
       node("pool", "aten::max_pool2d", {{"self", tensor("sum")}, {"kernel_size", int64_t{2}}}),
       node("flat", "aten::flatten", {{"self", tensor("pool")}, {"start_dim", int64_t{1}}}, "using_ints"),
       node("fc", "aten::linear",
            {{"input", tensor("flat")}, {"weight", tensor("fc.weight")}, {"bias", tensor("fc.bias")}}),
       node("loss", "aten::cross_entropy_loss", {{"self", tensor("fc")}, {"target", tensor("labels")}})},
      {"loss", "fc"});
  graph.buffers = {{"norm.running_mean", {"float32", {3}}}, {"norm.running_var", {"float32", {3}}}};
  return graph;
}

/// Inputs, parameters (leaves) and buffers of small_convnet().
inline Tensors small_convnet_tensors() {
  auto generator = at::detail::createCPUGenerator(7);
  Tensors tensors;
  for (const auto& parameter : small_convnet().parameters)
    tensors[parameter.name] = (at::randn(parameter.type.shape, generator) * 0.5).requires_grad_();
  tensors["images"] = at::randn({4, 1, 8, 8}, generator);
  tensors["labels"] = at::randint(0, 5, {4}, generator, at::kLong);
  tensors["norm.running_mean"] = at::zeros({3});
  tensors["norm.running_var"] = at::ones({3});
  return tensors;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

}  // namespace pipewright::testing

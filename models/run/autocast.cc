#include "models/run/autocast.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "graph/run.h"
#include "models/run/interpreter.h"
#include "models/run/scalar_types.h"

namespace pipewright {
namespace {

at::Tensor zeros_of(const TensorType& type, at::Device device) {
  return at::zeros(type.shape, at::TensorOptions(scalar_type_of(type.dtype)).device(device));
}

}  // namespace

Graph with_precision(const Model& model, const std::string& precision, at::Device device) {
  const std::vector<std::string>& known = known_precisions();
  if (std::find(known.begin(), known.end(), precision) == known.end())
    throw InputError("precision '" + precision + "' is not one of " + join(known, ", ") +
                     suggestion(precision, known));
  if (precision == "tf32" && device.is_cpu())
    throw InputError("precision 'tf32' is how GPUs multiply, and the device is the CPU",
                     "Next: --precision float32; or --device cuda.");
  // LibTorch lets cuDNN use it unless it is told.
  at::globalContext().setAllowTF32CuDNN(precision == "tf32");
  at::globalContext().setAllowTF32CuBLAS(precision == "tf32");
  Graph graph = model.graph;
  if (precision != "bfloat16") return graph;
  graph.autocast.emplace();
  // Two samples: one is too few for a batch norm behind a global pooling.
  Graph small = model.fixed_batch || model.graph_for == nullptr ? graph : with_batch_size(model, 2);
  small.autocast.emplace();
  std::vector<size_t> nodes(graph.nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i] = i;
  const Segment segment(small, nodes, {small.outputs.at(0)}, device);
  std::vector<at::Tensor> inputs, parameters, buffers;
  for (const std::string& name : segment.inputs()) inputs.push_back(zeros_of(small.values.at(name), device));
  for (const std::string& name : segment.parameters()) {
    for (const Parameter& parameter : graph.parameters) {
      if (parameter.name == name) parameters.push_back(zeros_of(parameter.type, device));
    }
  }
  for (const std::string& name : segment.buffers()) {
    for (const Buffer& buffer : graph.buffers) {
      if (buffer.name == name) buffers.push_back(zeros_of(buffer.type, device));
    }
  }
  NodeObserver observer;
  observer.made = [&](size_t node, size_t output, const at::Tensor& tensor) {
    const auto& names = graph.nodes[node].outputs;
    if (!tensor.defined() || output >= names.size()) return;
    const std::string dtype = dtype_name_of(tensor.scalar_type());
    if (dtype != graph.values.at(names[output]).dtype) (*graph.autocast)[names[output]] = dtype;
  };
  const at::NoGradGuard no_grad;
  segment.forward(std::move(inputs), parameters, buffers, {}, &observer);
  return graph;
}

}  // namespace pipewright

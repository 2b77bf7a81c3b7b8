#include "models/run/device_passes.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <algorithm>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/definition/literal.h"

namespace pipewright {
namespace {

constexpr const char* kChannelsLast = "channels-last";
constexpr const char* kAlignedProducts = "aligned-products";

constexpr int64_t kAlignment = 8;                   // numbers of 16 bits in what is read at once
constexpr int64_t kManyNumbers = int64_t{1} << 20;  // of a weight: the copy costs less than it wins

// Autocast would cast what is made here of float32 numbers: half the bytes if it happens before.
at::Tensor as_computed(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device) && tensor.scalar_type() == at::kFloat;
  return casts ? tensor.to(at::autocast::get_autocast_dtype(device)) : tensor;
}

at::Tensor conv2d_channels_last(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  constexpr auto kInnermost = at::MemoryFormat::ChannelsLast;
  return at::conv2d(as_computed(input).contiguous(kInnermost), as_computed(weight).contiguous(kInnermost),
                    bias, stride, padding, dilation, groups);
}

at::Tensor linear_aligned(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) {
  const int64_t rows = weight.size(0);
  const int64_t missing = (kAlignment - rows % kAlignment) % kAlignment;
  const at::Tensor padded = at::constant_pad_nd(as_computed(weight), {0, 0, 0, missing});
  std::optional<at::Tensor> padded_bias;
  if (bias && bias->defined()) padded_bias = at::constant_pad_nd(as_computed(*bias), {0, missing});
  return at::linear(input, padded, padded_bias).narrow(-1, 0, rows);
}

TORCH_LIBRARY(pipewright, library) {
  library.def(
      "conv2d_channels_last(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] "
      "padding=0, "
      "int[2] dilation=1, int groups=1) -> Tensor",
      &conv2d_channels_last);
  library.def("linear_aligned(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", &linear_aligned);
}

c10::OperatorHandle own(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

std::vector<int64_t> shape_of(const Graph& graph, const Node& node, const char* argument) {
  const auto* tensor = literal<TensorArgument>(node, argument);
  if (tensor == nullptr) return {};
  for (const Parameter& parameter : graph.parameters)
    if (parameter.name == tensor->name) return parameter.type.shape;
  const auto value = graph.values.find(tensor->name);
  return value == graph.values.end() ? std::vector<int64_t>() : value->second.shape;
}

}  // namespace

const std::vector<std::string>& known_device_passes() {
  static const std::vector<std::string> known = {kChannelsLast, kAlignedProducts};
  return known;
}

Graph with_device_passes(Graph graph, const std::string& asked, const std::string& precision,
                         at::Device device) {
  graph.device_passes.clear();
  if (asked == "none") return graph;
  if (asked == "auto") {
    if (device.is_cpu() || precision == "float32") return graph;
    graph.device_passes.insert(kChannelsLast);
    if (precision == "bfloat16") graph.device_passes.insert(kAlignedProducts);
    return graph;
  }
  std::istringstream names(asked);
  for (std::string name; std::getline(names, name, ',');) {
    const auto& known = known_device_passes();
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw InputError("device_passes '" + asked + "': '" + name + "' is not one of auto, none, " +
                       join(known, ", ") + suggestion(name, known));
    graph.device_passes.insert(name);
  }
  return graph;
}

std::optional<c10::OperatorHandle> operator_by_passes(const Graph& graph, const Node& node) {
  if (graph.device_passes.empty() || !node.overload.empty()) return {};
  if (node.op == "aten::conv2d" && graph.device_passes.count(kChannelsLast) > 0)
    return own("pipewright::conv2d_channels_last");
  if (node.op == "aten::linear" && graph.device_passes.count(kAlignedProducts) > 0) {
    const std::vector<int64_t> weight = shape_of(graph, node, "weight");
    const bool pays =
        weight.size() == 2 && weight[0] % kAlignment != 0 && weight[0] * weight[1] >= kManyNumbers;
    if (pays) return own("pipewright::linear_aligned");
  }
  return {};
}

}  // namespace pipewright

#include "models/run/device_passes.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/nearest.h"
#include "models/definition/literal.h"
#include "models/run/cross_entropy.h"
#include "models/run/layer_norm.h"
#include "models/run/operators.h"

namespace pipewright {
namespace {

constexpr const char* kChannelsLast = "channels-last";
constexpr const char* kAlignedProducts = "aligned-products";
constexpr const char* kContiguousOperands = "contiguous-operands";
constexpr const char* kFusedCrossEntropy = "fused-cross-entropy";
constexpr const char* kTwoStageLayerNorm = "two-stage-layer-norm";
constexpr const char* kWeightsCastOnce = "weights-cast-once";

constexpr int64_t kAlignment = 8;                   // numbers of 16 bits in what is read at once
constexpr int64_t kManyNumbers = int64_t{1} << 20;  // of a weight: the copy costs less than it wins

// As autocast would cast it for a product: if that happens before it is copied, half the bytes are.
at::Tensor as_computed(const at::Tensor& tensor, std::optional<at::MemoryFormat> order = {}) {
  const auto device = tensor.device().type();
  const at::ScalarType dtype = tensor.scalar_type();
  const bool casts =
      at::autocast::is_autocast_enabled(device) && at::isFloatingType(dtype) && dtype != at::kDouble;
  return casts ? tensor.to(at::autocast::get_autocast_dtype(device), false, false, order) : tensor;
}

at::Tensor conv2d_channels_last(const at::Tensor& input, const at::Tensor& weight,
                                const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  constexpr auto kInnermost = at::MemoryFormat::ChannelsLast;
  return at::conv2d(as_computed(input).contiguous(kInnermost), as_computed(weight).contiguous(kInnermost),
                    bias, stride, padding, dilation, groups);
}

at::Tensor linear_contiguous(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias) {
  if (input.is_contiguous()) return at::linear(input, weight, bias);
  return at::linear(as_computed(input, at::MemoryFormat::Contiguous).contiguous(), weight, bias);
}

at::Tensor add_contiguous(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const bool other_first = !self.is_contiguous() && !self.is_contiguous(at::MemoryFormat::ChannelsLast) &&
                           other.is_contiguous() && self.sizes() == other.sizes() && alpha.equal(1);
  return other_first ? at::add(other, self) : at::add(self, other, alpha);
}

// A view where the numbers lie so that there is one; other passes may have laid them otherwise.
at::Tensor view_or_copy(const at::Tensor& self, at::IntArrayRef size) { return at::reshape(self, size); }

at::Tensor with_zeros_behind(const at::Tensor& tensor, int64_t missing) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = missing;
  return at::cat({tensor, at::zeros(sizes, tensor.options())});  // whose backward is a view
}

// Other columns of the same rows in the same memory: no view, which in a function of its own may not be
// changed.
at::Tensor with_columns(const at::Tensor& matrix, int64_t columns, int64_t stride) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(matrix.storage()), matrix.key_set(),
                                                             matrix.dtype());
  const int64_t sizes[] = {matrix.size(0), columns}, strides[] = {stride, 1};
  made.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes), at::IntArrayRef(strides));
  return made;
}

// `gradient`, of the first columns of a matrix of `width`, as one of the whole matrix. If it lies in one,
// that: what else is in there has no part in the products, and is finite (the fused cross entropy's zeros, or
// the gradient of something beside) unless all is lost anyhow.
at::Tensor of_whole_matrix(const at::Tensor& gradient, int64_t width) {
  const int64_t rows = gradient.size(0);
  const bool lies_in_one =
      gradient.stride(1) == 1 && gradient.stride(0) == width && gradient.storage_offset() == 0 &&
      gradient.storage().nbytes() == static_cast<size_t>(rows * width) * gradient.element_size();
  if (lies_in_one && !at::GradMode::is_enabled()) return with_columns(gradient, width, width);
  return at::constant_pad_nd(gradient, {0, width - gradient.size(1)});
}

// The first `columns` of input weight^T + bias. As a function of its own, its backward finds the gradient
// where it lies instead of making a matrix of zeros for it.
struct FirstColumns : torch::autograd::Function<FirstColumns> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, int64_t columns) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    return with_columns(at::linear(input, weight, bias), columns, weight.size(0));
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor gradient = of_whole_matrix(gradients[0], saved[1].size(0));
    Tensors made(4);
    if (context->needs_input_grad(0)) made[0] = at::mm(gradient, saved[1]);
    if (context->needs_input_grad(1)) made[1] = at::mm(gradient.t(), saved[0]);
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) made[2] = gradient.sum(0);
    return made;
  }
};

// Zeros behind the weight, as cuBLAS takes slow kernels where a product has an odd extent, even if its rows
// are aligned: (8192, 768) by (768, 50257) in bfloat16 takes 6.8 ms on an H200, 0.95 to 50264, the zeros
// 0.05.
at::Tensor linear_aligned(const at::Tensor& input, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(input.dim() > 0 && weight.dim() == 2, "linear of sizes ", input.sizes(), " and ",
              weight.sizes());
  const int64_t columns = weight.size(0);
  const int64_t missing = (kAlignment - columns % kAlignment) % kAlignment;
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.pop_back();
  const int64_t rows = c10::multiply_integers(sizes);
  std::optional<at::Tensor> whole_bias;
  if (bias && bias->defined()) {
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == columns, "linear with a bias of sizes ", bias->sizes());
    whole_bias = with_zeros_behind(as_computed(*bias), missing);
  }
  const at::Tensor output =
      FirstColumns::apply(as_computed(input).reshape({rows, input.size(-1)}),
                          with_zeros_behind(as_computed(weight), missing), whole_bias, columns);
  sizes.push_back(columns);
  return output.view(sizes);
}

TORCH_LIBRARY(pipewright, library) {
  library.def(
      "conv2d_channels_last(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] "
      "padding=0, "
      "int[2] dilation=1, int groups=1) -> Tensor",
      &conv2d_channels_last);
  library.def("linear_aligned(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", &linear_aligned);
  library.def("linear_contiguous(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
              &linear_contiguous);
  library.def("add_contiguous(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", &add_contiguous);
  library.def("view_or_copy(Tensor(a) self, int[] size) -> Tensor(a)", &view_or_copy);
  library.def(
      "cross_entropy_fused(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
      "int ignore_index=-100, float label_smoothing=0.0) -> Tensor",
      &cross_entropy_fused);
  library.def(
      "layer_norm_two_stage(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
      "float eps=1e-05, bool cudnn_enable=True) -> Tensor",
      &layer_norm_two_stage);
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

// Why the numbers of the graph's tensors must lie as they do: a node that says how, or a view that may not
// be a copy.
std::optional<std::string> why_in_order(const Graph& graph) {
  const Storages storages(graph);
  std::map<size_t, size_t> last_write;  // by memory: the node
  for (const Storages::Write& write : storages.writes()) {
    size_t& last = last_write[storages.class_of(write.tensor)];
    last = std::max(last, write.node);
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op == "aten::as_strided") return label_of(node) + " says how its numbers lie in memory";
    if (node.op != "aten::view") continue;
    const auto write = last_write.find(storages.class_of(node.outputs.at(0)));
    if (write != last_write.end() && write->second > i)
      return label_of(node) + " is a view of what " + label_of(graph.nodes[write->second]) + " writes";
  }
  return {};
}

}  // namespace

const std::vector<std::string>& known_device_passes() {
  static const std::vector<std::string> known = {kChannelsLast,      kAlignedProducts,   kContiguousOperands,
                                                 kFusedCrossEntropy, kTwoStageLayerNorm, kWeightsCastOnce};
  return known;
}

Graph with_device_passes(Graph graph, const std::string& asked, const std::string& precision,
                         at::Device device) {
  graph.device_passes.clear();
  if (asked == "none") return graph;
  if (asked == "auto") {
    if (device.is_cpu() || precision == "float32") return graph;
    graph.device_passes.insert(kChannelsLast);
    if (precision == "bfloat16")
      graph.device_passes.insert(
          {kAlignedProducts, kContiguousOperands, kFusedCrossEntropy, kTwoStageLayerNorm, kWeightsCastOnce});
    if (why_in_order(graph))
      for (const char* const pass : {kChannelsLast, kContiguousOperands}) graph.device_passes.erase(pass);
    return graph;
  }
  std::istringstream names(asked);
  for (std::string name; std::getline(names, name, ',');) {
    const auto& known = known_device_passes();
    if (name == "auto" || name == "none")
      throw InputError("device_passes '" + asked + "': '" + name + "' stands alone");
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw InputError("device_passes '" + asked + "': '" + name + "' is not one of auto, none, " +
                       join(known, ", ") + suggestion(name, known));
    if (name == kChannelsLast || name == kContiguousOperands) {
      if (const auto why = why_in_order(graph))
        throw InputError(
            "device_passes '" + asked + "': " + *why + ", and '" + name + "' lays numbers in another order",
            "Next: leave out '" + name + "'.");
    }
    graph.device_passes.insert(name);
  }
  return graph;
}

bool casts_weights_once(const Graph& graph) {
  return graph.autocast && graph.device_passes.count(kWeightsCastOnce) > 0;
}

bool reads_copies(const Graph& graph, const Node& node, at::Device device) {
  if (!casts_weights_once(graph) || !node.autocast.empty()) return false;
  // Autocast has a kernel for each operator of its lists. One that reads a float32 weight and gives bfloat16
  // is of the list that casts to that: others cast to float32, or to the widest that they read.
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(device.type());
  if (!find_operator(node).hasKernelForDispatchKey(key)) return false;
  return std::any_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& output) {
    const auto made = graph.autocast->find(output);
    return made != graph.autocast->end() && made->second == "bfloat16";
  });
}

const Storages& OperatorsByPasses::storages() {
  if (!storages_) storages_.emplace(graph_);
  return *storages_;
}

// Whether every view of `value` keeps its rows of so many numbers as they are: joined they would have gaps.
bool OperatorsByPasses::keeps_rows(const std::string& value, int64_t columns) {
  static const std::set<std::string> views = {"aten::view", "aten::view_as", "aten::as_strided"};
  const auto keeps = [&](const Node& node, const std::string& view) {
    if (storages().class_of(view) != storages().class_of(value)) return true;
    const std::vector<int64_t>& shape = graph_.values.at(view).shape;
    return node.op != "aten::as_strided" && !shape.empty() && shape.back() == columns;
  };
  for (const Node& node : graph_.nodes) {
    if (views.count(node.op) == 0) continue;
    for (const std::string& view : node.outputs)
      if (!keeps(node, view)) return false;
  }
  return true;
}

std::optional<c10::OperatorHandle> OperatorsByPasses::operator_for(const Node& node) {
  const std::set<std::string>& passes = graph_.device_passes;
  if (passes.empty()) return {};
  const auto has = [&](const char* pass) { return passes.count(pass) > 0; };
  if (node.op == "aten::add" && node.overload == "Tensor" && has(kContiguousOperands)) {
    const std::vector<int64_t> self = shape_of(graph_, node, "self");
    if (self.size() > 1 && self == shape_of(graph_, node, "other")) return own("pipewright::add_contiguous");
  }
  if (!node.overload.empty()) return {};
  if (node.op == "aten::view" && (has(kContiguousOperands) || has(kChannelsLast)))
    return own("pipewright::view_or_copy");
  if (node.op == "aten::conv2d" && has(kChannelsLast)) return own("pipewright::conv2d_channels_last");
  if (node.op == "aten::linear" && has(kAlignedProducts)) {
    const std::vector<int64_t> weight = shape_of(graph_, node, "weight");
    const bool pays =
        weight.size() == 2 && weight[0] % kAlignment != 0 && weight[0] * weight[1] >= kManyNumbers;
    if (pays && node.outputs.size() == 1 && keeps_rows(node.outputs[0], weight[0]))
      return own("pipewright::linear_aligned");
  }
  if (node.op == "aten::linear" && has(kContiguousOperands)) return own("pipewright::linear_contiguous");
  if (node.op == "aten::cross_entropy_loss" && has(kFusedCrossEntropy))
    return own("pipewright::cross_entropy_fused");
  if (node.op == "aten::layer_norm" && has(kTwoStageLayerNorm))
    return own("pipewright::layer_norm_two_stage");
  return {};
}

}  // namespace pipewright

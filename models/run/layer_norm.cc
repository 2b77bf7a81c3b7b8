#include "models/run/layer_norm.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "models/device/cuda_plugin.h"
#include "models/device/device.h"

namespace pipewright {
namespace {

// Of the weight and of the bias.
using WeightGradients = std::tuple<at::Tensor, at::Tensor>;

WeightGradients weight_gradients_on_cpu(const at::Tensor& gradient, const at::Tensor& input,
                                        const at::Tensor& mean, const at::Tensor& rstd) {
  const at::Tensor weight = at::ones({input.size(-1)}, input.options());  // its sizes are looked at
  auto made = at::native_layer_norm_backward(gradient, input, weight.sizes(), mean, rstd, weight, weight,
                                             {false, true, true});
  return {std::get<1>(made), std::get<2>(made)};
}

WeightGradients weight_gradients_on_cuda(const at::Tensor& gradient, const at::Tensor& input,
                                         const at::Tensor& mean, const at::Tensor& rstd) {
  const int64_t columns = input.size(-1);
  const at::Tensor weight = at::empty({columns}, input.options());
  const at::Tensor bias = at::empty({columns}, input.options());
  cuda_plugin("cuda").layer_norm_weight_gradients(
      {input.view({-1, columns}), gradient.view({-1, columns}), mean, rstd}, weight, bias);
  return {weight, bias};
}

// An operator of its own, so that a device can stand in for another, and record it.
TORCH_LIBRARY_FRAGMENT(pipewright, library) {
  library.def(
      "layer_norm_weight_gradients(Tensor gradient, Tensor input, Tensor mean, Tensor rstd) "
      "-> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(pipewright, CPU, library) {
  library.impl("layer_norm_weight_gradients", weight_gradients_on_cpu);
}
TORCH_LIBRARY_IMPL(pipewright, CUDA, library) {
  library.impl("layer_norm_weight_gradients", weight_gradients_on_cuda);
}

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, double epsilon) {
    auto [output, mean, rstd] = at::native_layer_norm(input, weight.sizes(), weight, bias, epsilon);
    context->save_for_backward({input, weight, mean, rstd});
    return output;
  }

  static Tensors backward(Context* context, const Tensors& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "the two-stage layer norm has no gradient of its gradient");
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("pipewright::layer_norm_weight_gradients", "")
                               .typed<decltype(weight_gradients_on_cpu)>();
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3];
    const at::Tensor gradient = gradients[0].contiguous();
    Tensors made(4);
    if (context->needs_input_grad(0))
      made[0] = std::get<0>(at::native_layer_norm_backward(gradient, input, weight.sizes(), mean, rstd,
                                                           weight, {}, {true, false, false}));
    if (context->needs_input_grad(1) || context->needs_input_grad(2))
      std::tie(made[1], made[2]) = op.call(gradient, input, mean, rstd);
    return made;
  }
};

bool is_of_columns(const std::optional<at::Tensor>& tensor, const at::Tensor& input) {
  return tensor && tensor->defined() && tensor->dim() == 1 && tensor->size(0) == input.size(-1) &&
         tensor->scalar_type() == at::kFloat && tensor->device() == input.device() && tensor->is_contiguous();
}

// Whether LibTorch computes with it in float, to float: autocast of GPUs casts what has fewer bits.
bool is_computed_in_float(const at::Tensor& input) {
  const at::ScalarType dtype = input.scalar_type();
  if (dtype == at::kFloat) return true;
  return input.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA) &&
         (dtype == at::kBFloat16 || dtype == at::kHalf);
}

bool pays_in_two_stages(const at::Tensor& input, at::IntArrayRef normalized_shape,
                        const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias) {
  if (input.dim() == 0 || input.numel() == 0 || !input.is_contiguous() || !is_computed_in_float(input))
    return false;
  if (normalized_shape.size() != 1 || normalized_shape[0] != input.size(-1)) return false;
  if (!is_of_columns(weight, input) || !is_of_columns(bias, input)) return false;
  if (!at::GradMode::is_enabled() || !(weight->requires_grad() || bias->requires_grad())) return false;
  return !input.is_cuda() || cuda_plugin("cuda").has_kernels();
}

}  // namespace

at::Tensor layer_norm_two_stage(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                const std::optional<at::Tensor>& weight,
                                const std::optional<at::Tensor>& bias, double epsilon, bool cudnn_enable) {
  if (!pays_in_two_stages(input, normalized_shape, weight, bias))
    return at::layer_norm(input, normalized_shape, weight, bias, epsilon, cudnn_enable);
  return LayerNormFunction::apply(input.to(at::kFloat), *weight, *bias, epsilon);
}

}  // namespace pipewright

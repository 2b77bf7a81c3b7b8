// The layer norm whose weight and bias get their gradients in two stages, as an operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pipewright {

/// at::layer_norm: for contiguous rows of floats, or of what autocast makes floats, and a weight and a bias
/// for one dimension, the forward and the gradient of the input are LibTorch's, to the bit; the gradients of
/// weight and bias, sums over all rows, are added in float in two stages, in an order that depends on nothing
/// but the shape. Anything else is LibTorch's, and so is all where no gradient is wanted, and on a GPU where
/// the plug-in has no kernels.
at::Tensor layer_norm_two_stage(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                const std::optional<at::Tensor>& weight,
                                const std::optional<at::Tensor>& bias, double epsilon, bool cudnn_enable);

}  // namespace pipewright

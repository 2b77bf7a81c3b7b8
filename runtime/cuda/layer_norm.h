// The gradients of a layer norm's weight and bias on a GPU; CudaPlugin says what they are.
#pragma once

#include "models/device/cuda_plugin.h"

namespace pipewright {

void layer_norm_weight_gradients_on_device(const LayerNorm& of, const at::Tensor& weight_gradient,
                                           const at::Tensor& bias_gradient);

}  // namespace pipewright

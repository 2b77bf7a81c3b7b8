// The cross entropy of rows of scores on a GPU; CudaPlugin says what they do.
#pragma once

#include "models/device/cuda_plugin.h"

namespace pipewright {

void cross_entropy_on_device(const CrossEntropy& of, const at::Tensor& loss);
void cross_entropy_backward_on_device(const CrossEntropy& of, const at::Tensor& loss_gradient,
                                      const at::Tensor& scores_gradient);

}  // namespace pipewright

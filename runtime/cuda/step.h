// Steps and copies of many tensors on a GPU; CudaPlugin says what they do.
#pragma once

#include "runtime/cuda/kernels.h"
#include "models/device/cuda_plugin.h"

namespace pipewright {

void step_on_device(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors,
                    Momentum momentum, bool decay, const StepFinds& finds);
void step_on_device(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors, Decay decay,
                    const StepFinds& finds);
void step_on_device(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                    const StepFinds& finds);
void copy_on_device(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);

}  // namespace pipewright

// Steps of weights that lie on a device: by the kernels of the CUDA plug-in, or by LibTorch's operators where
// it has none.
#pragma once

#include <vector>

#include "models/device/cuda_plugin.h"

namespace pipewright {

/// As CudaPlugin's. LibTorch's operators make several passes and round where they like: the numbers are those
/// of models/device/step_arithmetic.h to a few units in the last place of the weight and of the change. They add no
/// squares up: `finds.square_sum` is left alone.
void sgd_step_on_device(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors,
                        Momentum momentum, bool decay, const StepFinds& finds);
void adam_step_on_device(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors,
                         Decay decay, const StepFinds& finds);
void lion_step_on_device(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                         const StepFinds& finds);

/// The part of the steps above that finds what is not finite.
void find_not_finite(const std::vector<StepTensor>& tensors, const StepFinds& finds);

}  // namespace pipewright

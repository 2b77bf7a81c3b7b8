// Corrections of delays around a step that is not a loop of ours: of matrices, and of weights on a device.
#pragma once

#include "models/device/cuda_plugin.h"

namespace pipewright {

/// The arithmetic of fed_back() and compensated() of models/device/step_arithmetic.h by LibTorch's operators,
/// one rounding each.
struct WholeDelayedStep {
  DelayStep kind = DelayStep::kNone;
  double strength = 0;

  /// Before: what the step reads; its gradient may lie in `previous`, which the caller owns. Afterwards
  /// `tensor.old` is the old weight also where `next` was it.
  void begin(StepTensor& tensor, at::Tensor previous) const;
  /// After: `next` (its `copy` is not looked at) and `previous` become what they are.
  void end(const StepTensor& tensor, at::Tensor previous) const;
};

}  // namespace pipewright

// Adafactor's step of a parameter: by second moments of its rows and columns, and as far as its numbers are
// large.
#pragma once

#include "models/device/cuda_plugin.h"

namespace pipewright {

struct AdafactorFactors {
  double rate;
  double weight_decay;
  int64_t update;  ///< of this parameter, from 1
};

/// docs/semantics.md gives the formulas. On the CPU by our own loops: the bits depend on nothing but the
/// numbers, and no further tensor is made. On a device by LibTorch's operators, which make some of the
/// parameter's size. `first` is the slot, of slot_shape() in graph/update_rules.h; `second` is not looked at.
/// Changes `next`, its `copy` and `first`, which the caller owns.
void adafactor_step(const StepTensor& tensor, const AdafactorFactors& factors);

}  // namespace pipewright

// Muon's step of a matrix: not element by element, but along the nearest matrix whose rows (or columns) are
// orthonormal.
#pragma once

#include "models/device/cuda_plugin.h"

namespace pipewright {

struct MuonFactors {
  double rate;
  double weight_decay;
  double momentum;
  bool nesterov;
};

/// docs/semantics.md gives the formulas. By LibTorch's operators on the weight's device: the bits are those
/// of its products in bfloat16, the same wherever these are, and otherwise PyTorch 2.11's torch.optim.Muon.
/// `first` is the momentum; `second` is not looked at. Changes `next`, its `copy` and `first`, which
/// the caller owns.
void muon_step(const StepTensor& tensor, const MuonFactors& factors);

}  // namespace pipewright

#include "runtime/update/muon_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/norm.h>

#include <algorithm>
#include <cmath>

namespace pipewright {
namespace {

// Five iterations of X' = a X + (b G + c G G) X with G = X X^T, in bfloat16. Coefficients, their number and
// the least norm: Jordan et al. 2024, as PyTorch has them. Besides `x`, which is in bfloat16 and the
// function's own, there are one more X and one G at a time, or two G.
at::Tensor orthogonal(at::Tensor x) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  constexpr int kIterations = 5;
  constexpr double kLeastNorm = 1e-7;
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x.div_(x.norm().clamp_min(kLeastNorm));
  for (int i = 0; i < kIterations; ++i) {
    at::Tensor gram = at::matmul(x, x.t());
    gram = at::addmm(gram, gram, gram, kB, kC);
    x = at::addmm(x, gram, x, kA);
  }
  return tall ? x.t() : x;
}

// So that the step of an element is as large as AdamW's, whatever the shape: one rate and one decay fit both
// (Liu et al. 2025, arXiv 2502.16982; "match_rms_adamw" of torch.optim.Muon).
double rate_factor(const at::Tensor& matrix) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(matrix.size(0), matrix.size(1))));
}

}  // namespace

void muon_step(const StepTensor& tensor, const MuonFactors& factors) {
  const at::NoGradGuard no_grad;
  // Weights of less than 32 bits are stepped as floats.
  const at::ScalarType dtype = tensor.old.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor gradient = tensor.gradient.to(dtype);
  const at::Tensor first = tensor.first.to(dtype);
  first.lerp_(gradient, 1 - factors.momentum);
  if (!first.is_same(tensor.first)) tensor.first.copy_(first);
  const at::Tensor direction =
      orthogonal((factors.nesterov ? at::lerp(gradient, first, factors.momentum) : first).to(at::kBFloat16));
  const double keep = 1 - factors.rate * factors.weight_decay;
  const double rate = factors.rate * rate_factor(tensor.old);
  const at::Tensor next = tensor.next.to(dtype);
  next.copy_(tensor.old).mul_(keep).add_(direction, -rate);
  if (!next.is_same(tensor.next)) tensor.next.copy_(next);
  if (tensor.copy.defined()) tensor.copy.copy_(tensor.next);
}

}  // namespace pipewright

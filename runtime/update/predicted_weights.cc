#include "runtime/update/predicted_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

namespace pipewright {

void predict_by_velocity(const at::Tensor& weight, const at::Tensor& velocity, double way,
                         const at::Tensor& into) {
  const at::NoGradGuard no_grad;
  into.copy_(weight).sub_(at::mul(velocity, way));
}

void predict_by_moments(const at::Tensor& weight, const at::Tensor& first, const at::Tensor& second,
                        const AdamFactors<double>& factors, const at::Tensor& into) {
  const at::NoGradGuard no_grad;
  const at::Tensor divisor = at::sqrt(second).div_(factors.root_second).add_(factors.epsilon);
  into.copy_(weight).sub_(at::div(first, divisor).mul_(factors.rate));
}

}  // namespace pipewright

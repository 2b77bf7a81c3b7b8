#include "runtime/update/predicted_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>

namespace pipewright {

void predict_by_velocity(const at::Tensor& weight, const at::Tensor& velocity, double way, at::Tensor into) {
  const at::NoGradGuard no_grad;
  into.copy_(velocity).mul_(way);
  at::sub_out(into, weight, into);
}

void predict_by_moments(const at::Tensor& weight, const at::Tensor& first, const at::Tensor& second,
                        const AdamFactors<double>& factors, at::Tensor into) {
  const at::NoGradGuard no_grad;
  at::sqrt_out(into, second).div_(factors.root_second).add_(factors.epsilon);
  at::div_out(into, first, into).mul_(factors.rate);
  at::sub_out(into, weight, into);
}

}  // namespace pipewright

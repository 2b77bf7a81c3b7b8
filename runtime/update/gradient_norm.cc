#include "runtime/update/gradient_norm.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "runtime/update/step_kernels.h"

namespace pipewright {

at::Tensor in_order(const at::Tensor& by_stage) {
  at::Tensor sum = at::zeros({}, by_stage.options());
  for (int64_t stage = 0; stage < by_stage.numel(); ++stage) sum.add_(by_stage[stage]);
  return sum;
}

double square_sum(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor flat = gradient.detach().contiguous();
    if (flat.scalar_type() == at::kDouble) {
      sum += square_sum(flat.data_ptr<double>(), flat.numel());
    } else {
      const at::Tensor floats = flat.to(at::kFloat);
      sum += square_sum(floats.data_ptr<float>(), floats.numel());
    }
  }
  return sum;
}

at::Tensor square_sum_on(at::Device device, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  if (device.is_cpu()) return at::scalar_tensor(square_sum(gradients), at::kDouble);
  if (gradients.empty()) return at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  return at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).square_().sum();
}

double clipping_factor(double square_sum, double largest_norm) {
  return std::min(1.0, largest_norm / (std::sqrt(square_sum) + 1e-6));
}

void scale(std::vector<at::Tensor>& gradients, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients) gradient = gradient.mul(factor);
}

void clip(std::vector<at::Tensor>& gradients, const at::Tensor& square_sum, double largest_norm) {
  if (square_sum.device().is_cpu())
    return scale(gradients, clipping_factor(square_sum.item<double>(), largest_norm));
  const at::NoGradGuard no_grad;
  const at::Tensor factor = square_sum.sqrt().add_(1e-6).reciprocal_().mul_(largest_norm).clamp_max_(1);
  for (at::Tensor& gradient : gradients) gradient = gradient.mul(factor);
}

at::Tensor any_not_finite(const std::vector<at::Tensor>& tensors, bool nan) {
  const at::NoGradGuard no_grad;
  at::Tensor found;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_floating_point()) continue;
    // x - x is 0, but no number where x is not finite.
    const at::Tensor here = (nan ? tensor.ne(tensor) : tensor.sub(tensor)).any();
    found = found.defined() ? found.logical_or_(here) : here;
  }
  return found;
}

bool all_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return true;
  const at::Tensor flat = tensor.detach().contiguous();
  const void* const numbers = flat.data_ptr();
  switch (flat.scalar_type()) {
    case at::kFloat:
      return all_finite(static_cast<const uint32_t*>(numbers), flat.numel(), uint32_t{0x7f800000});
    case at::kDouble:
      return all_finite(static_cast<const uint64_t*>(numbers), flat.numel(), uint64_t{0x7ff0000000000000});
    case at::kBFloat16:
      return all_finite(static_cast<const uint16_t*>(numbers), flat.numel(), uint16_t{0x7f80});
    case at::kHalf:
      return all_finite(static_cast<const uint16_t*>(numbers), flat.numel(), uint16_t{0x7c00});
    default:
      return flat.isfinite().all().item<bool>();
  }
}

std::optional<size_t> last_not_finite(const std::vector<at::Tensor>& gradients) {
  for (size_t i = gradients.size(); i-- > 0;) {
    if (!all_finite(gradients[i])) return i;
  }
  return std::nullopt;
}

}  // namespace pipewright

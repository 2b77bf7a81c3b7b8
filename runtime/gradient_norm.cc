#include "runtime/gradient_norm.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "runtime/step_kernels.h"
#include "runtime/transport/all_reduce.h"

namespace pipewright {

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

double square_sum_of_model(Transport& transport, int64_t world_size, int64_t tag,
                           const std::vector<double>& by_stage) {
  std::vector<int64_t> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const at::Tensor sums = at::tensor(by_stage, at::kDouble);
  all_reduce_sum(transport, ranks, tag, sums);
  double sum = 0;
  for (int64_t stage = 0; stage < sums.numel(); ++stage) sum += sums.data_ptr<double>()[stage];
  return sum;
}

double clipping_factor(double square_sum, double largest_norm) {
  return std::min(1.0, largest_norm / (std::sqrt(square_sum) + 1e-6));
}

void scale(std::vector<at::Tensor>& gradients, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients) gradient = gradient.mul(factor);
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

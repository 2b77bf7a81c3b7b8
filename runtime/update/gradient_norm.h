// Norms of gradients: clipping, and whether they are finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace pipewright {

/// Sum of the squares of all numbers: of each tensor in an order that depends on its size alone
/// (runtime/update/step_kernels.h), then over the tensors in theirs. Not finite if one of them is not, or overflows.
double square_sum(const std::vector<at::Tensor>& gradients);

/// The same where the gradients are: one float64 on their device, `device`, which nobody waits for. On
/// another device than the CPU the order of the sum is LibTorch's.
at::Tensor square_sum_on(at::Device device, const std::vector<at::Tensor>& gradients);

/// by_stage[0] + by_stage[1] + ..., in this order: the square sum of the model.
at::Tensor in_order(const at::Tensor& by_stage);

/// What a gradient of this sum of squares is multiplied by, so that its norm is at most `largest_norm`:
/// min(1, largest_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does.
double clipping_factor(double square_sum, double largest_norm);

/// Out of place where anything changes: gradients may share memory.
void scale(std::vector<at::Tensor>& gradients, double factor);

/// Scales by clipping_factor(); `square_sum` may lie on the gradients' device, which nobody waits for.
void clip(std::vector<at::Tensor>& gradients, const at::Tensor& square_sum, double largest_norm);

/// Of a tensor of any dtype; what is no floating-point number is finite.
bool all_finite(const at::Tensor& tensor);

/// The same for tensors that lie on a device: a bool there, which nobody waits for. `nan`: only what is no
/// number counts. Undefined if none of the tensors is of floating-point numbers.
at::Tensor any_not_finite(const std::vector<at::Tensor>& tensors, bool nan = false);

/// The last of `gradients` that is not all finite: gradients stand in the order of the graph, the backward
/// comes from behind.
std::optional<size_t> last_not_finite(const std::vector<at::Tensor>& gradients);

}  // namespace pipewright

// Norms of gradients: clipping, and whether they are finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace pipewright {

class Transport;

/// Sum of the squares of all numbers: of each tensor in an order that depends on its size alone
/// (runtime/step_kernels.h), then over the tensors in theirs. Not finite if one of them is not, or overflows.
double square_sum(const std::vector<at::Tensor>& gradients);

/// The same over the whole model, for rules under which all stages update together: every rank calls it,
/// `by_stage` holding what it knows (one replica of each stage gives its stage's sum, all other entries are
/// 0). Adds the stages up in their order, so that all ranks get the same bits. Uses tags `tag` and `tag` + 1
/// between all ranks.
double square_sum_of_model(Transport& transport, int64_t world_size, int64_t tag,
                           const std::vector<double>& by_stage);

/// What a gradient of this sum of squares is multiplied by, so that its norm is at most `largest_norm`:
/// min(1, largest_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does.
double clipping_factor(double square_sum, double largest_norm);

/// Out of place where anything changes: gradients may share memory.
void scale(std::vector<at::Tensor>& gradients, double factor);

/// Of a tensor of any dtype; what is no floating-point number is finite.
bool all_finite(const at::Tensor& tensor);

/// The last of `gradients` that is not all finite: gradients stand in the order of the graph, the backward
/// comes from behind.
std::optional<size_t> last_not_finite(const std::vector<at::Tensor>& gradients);

}  // namespace pipewright

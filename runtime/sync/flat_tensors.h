// Several tensors as one for each dtype, so that they travel together.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pipewright {

/// A copy: the tensors of the first one's dtype in their order, end to end; then of the next dtype, and so
/// on.
std::vector<at::Tensor> flatten(const std::vector<at::Tensor>& tensors);
/// Views of what flatten() has made of tensors like these.
std::vector<at::Tensor> unflatten(const std::vector<at::Tensor>& flats, const std::vector<at::Tensor>& like);

}  // namespace pipewright

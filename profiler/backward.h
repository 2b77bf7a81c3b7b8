// The backward of what was measured.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

namespace pipewright {

/// Gradients at `targets`, undefined where none comes to; without a root to none. RunError where LibTorch
/// refuses: a model that changes in place what its backward needs, no memory.
std::vector<at::Tensor> backward(const at::Tensor& root, const torch::autograd::edge_list& targets);

/// The engine's thread for the device holds a backward's last tensors for a moment after it has handed out
/// the gradients. When it runs another one, which has no memory of its own, it has let go of them.
void wait_for_engine(at::Device device);

}  // namespace pipewright

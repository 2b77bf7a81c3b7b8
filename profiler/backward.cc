#include "profiler/backward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <string>

#include "graph/error.h"

namespace pipewright {

std::vector<at::Tensor> backward(const at::Tensor& root, const torch::autograd::edge_list& targets) {
  if (!root.defined() || targets.empty()) return std::vector<at::Tensor>(targets.size());
  const auto first_line = [](const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    return "the backward failed: " + message.substr(0, message.find('\n'));
  };
  try {
    TORCH_CHECK(root.requires_grad(), "the loss depends on nothing that has a gradient");
    return torch::autograd::Engine::get_default_engine().execute({torch::autograd::impl::gradient_edge(root)},
                                                                 {at::ones_like(root)}, /*keep_graph=*/false,
                                                                 /*create_graph=*/false,
                                                                 /*accumulate_grad=*/false, targets);
  } catch (const c10::OutOfMemoryError& error) {
    throw RunError(first_line(error), "Next: a smaller --batch-size, or a device with more memory.");
  } catch (const c10::Error& error) {
    throw RunError(first_line(error),
                   "Likely cause: the model changes in place what its backward needs; PyTorch cannot train "
                   "it either.");
  }
}

void wait_for_engine(at::Device device) {
  const at::Tensor nothing = at::empty({0}, at::TensorOptions().device(device)).requires_grad_();
  torch::autograd::grad({nothing.neg()}, {nothing}, {at::empty_like(nothing)});
}

}  // namespace pipewright

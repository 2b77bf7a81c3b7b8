#include "models/run/weight_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace pipewright {
namespace {

// Autograd's of a cast, without the cast.
struct ReadFromCopyBackward : torch::autograd::Node {
  std::vector<at::Tensor> apply(std::vector<at::Tensor>&& gradients) override {
    return {gradients[0].defined() ? gradients[0].to(weight) : at::Tensor()};
  }
  at::TensorOptions weight;
};

}  // namespace

at::Tensor room_for_copy(const at::Tensor& weight) {
  return at::empty(weight.sizes(), weight.options().dtype(at::kBFloat16).requires_grad(false));
}

void cast_to_copies(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& copies) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> from, to;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    from.push_back(weights.at(i));
    to.push_back(copies[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

at::Tensor read_from_copy(const at::Tensor& weight, const at::Tensor& copy) {
  if (!at::GradMode::is_enabled() || !weight.requires_grad()) return copy;
  auto function = std::make_shared<ReadFromCopyBackward>();
  function->weight = weight.options().requires_grad(false);
  function->add_next_edge(torch::autograd::impl::gradient_edge(weight));
  at::Tensor read = copy.detach();  // with the copy's version: autograd notices if it is written too early
  torch::autograd::set_history(read, function);
  return read;
}

}  // namespace pipewright

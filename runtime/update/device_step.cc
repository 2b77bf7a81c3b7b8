#include "runtime/update/device_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <limits>

#include "models/device/device.h"
#include "models/run/weight_copies.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

// The plug-in's kernels, for tensors that they can read.
CudaPlugin* kernels_for(const std::vector<StepTensor>& tensors) {
  if (tensors.empty() || !tensors[0].old.is_cuda()) return nullptr;
  CudaPlugin& plugin = cuda_plugin("cuda");
  return plugin.has_kernels() ? &plugin : nullptr;
}

// One member of each; numbers of less than 32 bits are computed as floats.
Tensors all(const std::vector<StepTensor>& tensors, at::Tensor StepTensor::*member) {
  Tensors list;
  for (const StepTensor& tensor : tensors) {
    const at::Tensor& one = tensor.*member;
    const bool narrow = one.scalar_type() != at::kFloat && one.scalar_type() != at::kDouble;
    list.push_back(narrow ? one.to(at::kFloat) : one);
  }
  return list;
}

// Puts back what had to be converted, or was made beside its place.
void put(const std::vector<StepTensor>& tensors, at::Tensor StepTensor::*member, const Tensors& values) {
  Tensors places;
  for (const StepTensor& tensor : tensors) places.push_back(tensor.*member);
  if (!places[0].is_same(values[0])) at::_foreach_copy_(places, values);
}

void put_next(const std::vector<StepTensor>& tensors, const Tensors& values) {
  put(tensors, &StepTensor::next, values);
  Tensors next, copies;
  for (const StepTensor& tensor : tensors) {
    next.push_back(tensor.next);
    copies.push_back(tensor.copy);
  }
  cast_to_copies(next, copies);
}

// The largest absolute value is finite if all are.
void find_not_finite(const std::vector<StepTensor>& tensors, const Tensors& gradients,
                     const StepFinds& finds) {
  if (!finds.not_finite.defined()) return;
  std::vector<int32_t> indices;
  for (const StepTensor& tensor : tensors) indices.push_back(tensor.index + 1);
  const at::Tensor largest = at::stack(at::_foreach_norm(gradients, std::numeric_limits<double>::infinity()));
  const at::Tensor numbers = at::tensor(indices, at::kInt).to(largest.device(), /*non_blocking=*/true) *
                             largest.sub(largest).ne(0).to(at::kInt);
  finds.not_finite.copy_(at::maximum(finds.not_finite, numbers.max()));
}

}  // namespace

void sgd_step_on_device(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors,
                        Momentum momentum, bool decay, const StepFinds& finds) {
  if (tensors.empty()) return;
  if (CudaPlugin* plugin = kernels_for(tensors))
    return plugin->sgd_step(tensors, factors, momentum, decay, finds);
  const at::NoGradGuard no_grad;
  const Tensors weights = all(tensors, &StepTensor::old);
  Tensors change = all(tensors, &StepTensor::gradient);
  find_not_finite(tensors, change, finds);
  if (decay) change = at::_foreach_add(change, weights, factors.weight_decay);
  if (momentum != Momentum::kNone) {
    const bool first = momentum == Momentum::kFirst || momentum == Momentum::kNesterovFirst;
    const bool ahead = momentum == Momentum::kNesterov || momentum == Momentum::kNesterovFirst;
    Tensors velocity =
        first
            ? change
            : at::_foreach_add(at::_foreach_mul(all(tensors, &StepTensor::first), factors.momentum), change);
    if (ahead)
      change = at::_foreach_add(change, velocity, factors.momentum);
    else
      change = velocity;
    put(tensors, &StepTensor::first, velocity);
  }
  put_next(tensors, at::_foreach_add(weights, change, -factors.rate));
}

void adam_step_on_device(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors,
                         Decay decay, const StepFinds& finds) {
  if (tensors.empty()) return;
  if (CudaPlugin* plugin = kernels_for(tensors)) return plugin->adam_step(tensors, factors, decay, finds);
  const at::NoGradGuard no_grad;
  Tensors weights = all(tensors, &StepTensor::old);
  Tensors gradients = all(tensors, &StepTensor::gradient);
  find_not_finite(tensors, gradients, finds);
  if (decay == Decay::kGradient) gradients = at::_foreach_add(gradients, weights, factors.weight_decay);
  if (decay == Decay::kWeight) weights = at::_foreach_mul(weights, factors.weight_decay);
  const Tensors first = all(tensors, &StepTensor::first);
  const Tensors second = all(tensors, &StepTensor::second);
  at::_foreach_lerp_(first, gradients, factors.first);
  at::_foreach_mul_(second, factors.keep_second);
  at::_foreach_addcmul_(second, gradients, gradients, factors.second);
  put(tensors, &StepTensor::first, first);
  put(tensors, &StepTensor::second, second);
  const Tensors divisor = at::_foreach_sqrt(second);
  at::_foreach_div_(divisor, factors.root_second);
  at::_foreach_add_(divisor, factors.epsilon);
  if (factors.ahead != 0) weights = at::_foreach_addcdiv(weights, gradients, divisor, -factors.ahead);
  put_next(tensors, at::_foreach_addcdiv(weights, first, divisor, -factors.rate));
}

void lion_step_on_device(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                         const StepFinds& finds) {
  if (tensors.empty()) return;
  if (CudaPlugin* plugin = kernels_for(tensors)) return plugin->lion_step(tensors, factors, finds);
  const at::NoGradGuard no_grad;
  const Tensors gradients = all(tensors, &StepTensor::gradient);
  find_not_finite(tensors, gradients, finds);
  const Tensors first = all(tensors, &StepTensor::first);
  const Tensors direction = at::_foreach_mul(first, factors.keep_direction);
  at::_foreach_add_(direction, gradients, factors.direction);
  at::_foreach_mul_(first, factors.keep_first);
  at::_foreach_add_(first, gradients, factors.first);
  put(tensors, &StepTensor::first, first);
  const Tensors weights = at::_foreach_mul(all(tensors, &StepTensor::old), factors.keep_weight);
  put_next(tensors, at::_foreach_add(weights, at::_foreach_sign(direction), -factors.rate));
}

void find_not_finite(const std::vector<StepTensor>& tensors, const StepFinds& finds) {
  if (!tensors.empty()) find_not_finite(tensors, all(tensors, &StepTensor::gradient), finds);
}

}  // namespace pipewright

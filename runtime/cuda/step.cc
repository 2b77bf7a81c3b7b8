#include "runtime/cuda/step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "runtime/cuda/step_tables.h"

namespace pipewright {
namespace {

// launch(table, stream) for tables of all tensors, which get the places for what they find.
template <typename S, typename Launch>
void launch_all(const std::vector<StepTensor>& tensors, const StepFinds& finds, const Launch& launch) {
  const at::Device device = tensors[0].old.device();
  const c10::DeviceGuard guard(device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device.index());
  for_each_step_table<S>(tensors, [&](StepTable<S>& table) {
    if (finds.not_finite.defined()) table.not_finite = finds.not_finite.data_ptr<int32_t>();
    at::Tensor sums;
    if (finds.square_sum.defined()) {
      sums = at::empty({table.chunks.count()}, at::TensorOptions().dtype(at::kDouble).device(device));
      table.square_sums = sums.data_ptr<double>();
    }
    launch(table, stream.stream());
    if (sums.defined()) finds.square_sum.add_(sums.sum());
  });
}

// make_rule(T) is the rule computed in T.
template <typename MakeRule>
void dispatch(const std::vector<StepTensor>& tensors, const StepFinds& finds, const MakeRule& make_rule) {
  if (tensors.empty()) return;
  const auto run = [&](auto storage) {
    using S = decltype(storage);
    const auto rule = make_rule(typename Computed<S>::Type{});
    launch_all<S>(tensors, finds,
                  [&](const StepTable<S>& table, cudaStream_t stream) { launch_step(table, rule, stream); });
  };
  switch (tensors[0].old.scalar_type()) {
    case at::kFloat:
      return run(float{});
    case at::kDouble:
      return run(double{});
    case at::kBFloat16:
      return run(c10::BFloat16{});
    case at::kHalf:
      return run(c10::Half{});
    default:
      PW_CHECK(false, "no step for weights of " << tensors[0].old.scalar_type());
  }
}

}  // namespace

void step_on_device(const std::vector<StepTensor>& tensors, const SgdFactors<double>& factors,
                    Momentum momentum, bool decay, const StepFinds& finds) {
  dispatch(tensors, finds, [&](auto number) {
    using T = decltype(number);
    return SgdRule<T>{rounded<T>(factors), momentum, decay};
  });
}

void step_on_device(const std::vector<StepTensor>& tensors, const AdamFactors<double>& factors, Decay decay,
                    const StepFinds& finds) {
  dispatch(tensors, finds, [&](auto number) {
    using T = decltype(number);
    return AdamRule<T>{rounded<T>(factors), decay};
  });
}

void step_on_device(const std::vector<StepTensor>& tensors, const LionFactors<double>& factors,
                    const StepFinds& finds) {
  dispatch(tensors, finds, [&](auto number) {
    using T = decltype(number);
    return LionRule<T>{rounded<T>(factors)};
  });
}

void copy_on_device(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  if (from.empty()) return;
  const c10::DeviceGuard guard(from[0].device());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(from[0].device().index());
  for_each_copy_table(from, to, [&](const CopyTable& table) { launch_copy(table, stream.stream()); });
}

}  // namespace pipewright

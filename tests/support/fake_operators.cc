// The operators of the fake device: the host's kernels on the host's side of its tensors.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "tests/support/fake_memory.h"
#include "tests/support/fake_recorder.h"
#include "tests/support/fake_state.h"

namespace pipewright::testing {
namespace {

// One call: its tensors go to the CPU's kernels and come back.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {}

  c10::IValue to_host(const c10::IValue& value) {
    if (value.isTensor()) return to_host(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_host(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec())
        list.push_back(tensor ? std::optional(to_host(*tensor)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) {
      device_ = value.toDevice();
      return at::Device(at::kCPU);
    }
    return value;
  }

  c10::IValue from_host(const c10::IValue& value) {
    if (value.isTensor()) return from_host(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(from_host(tensor));
      return list;
    }
    return value;
  }

  at::Device device() const { return device_; }

  /// As a recording holds it; numbers of the host that were given beside tensors belong to it.
  at::Tensor borrow(FakeRecorder& recorder, const at::Tensor& on_host) const {
    const bool ours = std::any_of(pairs_.begin(), pairs_.end(),
                                  [&](const auto& pair) { return pair.first.is_same(on_host); });
    return ours ? recorder.borrow(on_host) : on_host;
  }

  /// Kernels that resize what they write to have made new memory for it.
  void put_back() {
    for (auto& [theirs, ours] : pairs_) {
      if (ours.storage().data() == theirs.storage().data() && ours.sizes() == theirs.sizes()) continue;
      at::TensorImpl* const impl = ours.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(view_as(theirs, ours.device()).storage());
      impl->set_sizes_and_strides(theirs.sizes(), theirs.strides());
    }
  }

 private:
  at::Tensor to_host(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!is_fake(tensor)) {
      TORCH_CHECK(tensor.dim() == 0, "Expected all tensors to be on the same device, but ",
                  op_.schema().name(), " was given one of the CPU");
      return tensor;
    }
    device_ = tensor.device();
    at::Tensor view = view_as(tensor, at::kCPU);
    pairs_.emplace_back(view, tensor);
    return view;
  }

  at::Tensor from_host(const at::Tensor& tensor) {
    if (!tensor.defined() || is_fake(tensor)) return tensor;
    for (const auto& [theirs, ours] : pairs_)
      if (theirs.is_same(tensor)) return ours;
    for (const auto& [theirs, ours] : pairs_)  // a view of what it was given
      if (theirs.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl())
        return tensor_on(ours.storage(), tensor);
    return view_as(tensor, device_);
  }

  const c10::OperatorHandle& op_;
  at::Device device_{kFake, 0};
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

std::vector<at::Tensor> tensors_of(const c10::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

c10::IValue borrow(const Call& call, FakeRecorder& recorder, const c10::IValue& value) {
  if (value.isTensor()) return call.borrow(recorder, value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(call.borrow(recorder, tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec())
      list.push_back(tensor ? std::optional(call.borrow(recorder, *tensor)) : std::nullopt);
    return list;
  }
  return value;
}

void fallback(const c10::OperatorHandle& op, c10::Stack* stack) {
  constexpr c10::DispatchKeySet kHost(c10::DispatchKey::CPU);
  ++fake_counters().operators;
  spend_fake_time(op.schema().name());
  Call call(op);
  const auto first = static_cast<std::ptrdiff_t>(stack->size() - op.schema().arguments().size());
  for (auto value = stack->begin() + first; value != stack->end(); ++value) *value = call.to_host(*value);
  FakeRecorder* const recorder = FakeRecorder::current(call.device().index());
  c10::Stack borrowed;
  for (auto value = stack->begin() + first; recorder && value != stack->end(); ++value)
    borrowed.push_back(borrow(call, *recorder, *value));
  op.redispatchBoxed(kHost, stack);
  const std::vector<at::Tensor> on_host = tensors_of(c10::Stack(stack->begin() + first, stack->end()));
  for (auto value = stack->begin() + first; value != stack->end(); ++value) *value = call.from_host(*value);
  call.put_back();
  if (!recorder) return;
  const auto again = [op, borrowed] {
    c10::Stack values = borrowed;
    op.redispatchBoxed(kHost, &values);
    return tensors_of(values);
  };
  recorder->add(again, on_host, tensors_of(c10::Stack(stack->begin() + first, stack->end())),
                op.hasTag(at::Tag::nondeterministic_seeded));
}

using Tensors = std::vector<at::Tensor>;

// `run` makes tensors of the host from those of the host: what the device makes from its own.
Tensors run_on_host(at::Device device, Tensors arguments, std::function<Tensors(const Tensors&)> run) {
  for (at::Tensor& argument : arguments)
    if (argument.defined()) argument = host_side(argument);
  const Tensors on_host = run(arguments);
  Tensors made;
  for (const at::Tensor& tensor : on_host)
    made.push_back(tensor.defined() ? view_as(tensor, device) : tensor);
  if (FakeRecorder* const recorder = FakeRecorder::current(device.index())) {
    for (at::Tensor& argument : arguments) argument = recorder->borrow(argument);
    recorder->add([run, arguments] { return run(arguments); }, on_host, made, /*draws=*/false);
  }
  return made;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (!is_fake(self) || !is_fake(dst))
    refuse_while_recording(is_fake(self) ? self.device().index() : dst.device().index(),
                           "a copy from or to the host");
  if (!is_fake(self)) {
    ++(non_blocking ? fake_counters().uploads : fake_counters().blocking_uploads);
    fake_counters().uploaded_bytes += static_cast<int64_t>(self.nbytes());
  }
  if (!is_fake(dst)) ++(non_blocking ? fake_counters().downloads : fake_counters().waits);
  spend_fake_time("aten::_copy_from");
  const at::Tensor to = host_side(dst), from = host_side(self);
  if (FakeRecorder* const recorder = is_fake(dst) ? FakeRecorder::current(dst.device().index()) : nullptr) {
    const at::Tensor borrowed_to = recorder->borrow(to), borrowed_from = recorder->borrow(from);
    recorder->add([borrowed_to, borrowed_from] { return Tensors{borrowed_to.copy_(borrowed_from)}; }, {to},
                  {dst},
                  /*draws=*/false);
  }
  to.copy_(from);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar item(const at::Tensor& self) {
  refuse_while_recording(self.device().index(), "reading a number of the device");
  ++fake_counters().waits;
  return host_side(self).item();
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  spend_fake_time("aten::convolution_overrideable");
  const auto run = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                    output_padding = output_padding.vec(), groups](const Tensors& on_host) -> Tensors {
    std::optional<at::Tensor> host_bias;
    if (on_host[2].defined()) host_bias = on_host[2];
    return {at::convolution(on_host[0], on_host[1], host_bias, stride, padding, dilation, transposed,
                            output_padding, groups)};
  };
  return run_on_host(input.device(), {input, weight, bias.value_or(at::Tensor())}, run)[0];
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  spend_fake_time("aten::convolution_backward_overrideable");
  const auto run = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                    output_padding = output_padding.vec(), groups, mask](const Tensors& on_host) -> Tensors {
    const std::vector<int64_t> bias_sizes = {on_host[0].size(1)};
    auto [of_input, of_weight, of_bias] =
        at::convolution_backward(on_host[0], on_host[1], on_host[2], bias_sizes, stride, padding, dilation,
                                 transposed, output_padding, groups, mask);
    return {of_input, of_weight, of_bias};
  };
  const Tensors made = run_on_host(input.device(), {gradient, input, weight}, run);
  return {made[0], made[1], made[2]};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", item);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

// Autocast's list: the operators that pay, and two that are sensitive.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macros want this name
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

}  // namespace
}  // namespace pipewright::testing

#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <mutex>

namespace pipewright::testing {
namespace {

constexpr at::DeviceType kFake = at::kPrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

struct Counters {
  std::atomic<int64_t> operators = 0, uploads = 0, blocking_uploads = 0, downloads = 0, waits = 0, late = 0;
};
Counters& counters() {
  static Counters counters;
  return counters;
}

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kFake; }

// The same memory seen from the other side. Whoever holds the view holds the memory.
at::Tensor view_as(const at::Tensor& tensor, at::Device device) {
  struct Holder {
    c10::Storage storage;
  };
  const c10::Storage& storage = tensor.storage();
  auto* holder = new Holder{storage};
  at::DataPtr data(
      storage.mutable_data(), holder, [](void* held) { delete static_cast<Holder*>(held); }, device);
  auto impl =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                            std::move(data), c10::GetAllocator(at::kCPU), /*resizable=*/true);
  const auto keys = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(impl)),
                                                             c10::DispatchKeySet(keys), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

// One call: its tensors go to the processor's kernels and come back.
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
                  op_.schema().name(), " was given one of the processor");
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
    return view_as(tensor, device_);
  }

  const c10::OperatorHandle& op_;
  at::Device device_{kFake, 0};
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void fallback(const c10::OperatorHandle& op, c10::Stack* stack) {
  ++counters().operators;
  Call call(op);
  const size_t first = stack->size() - op.schema().arguments().size();
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = call.to_host((*stack)[i]);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    (*stack)[i] = call.from_host((*stack)[i]);
  call.put_back();
}

at::Tensor host_side(const at::Tensor& tensor) {
  return is_fake(tensor) ? view_as(tensor, at::kCPU) : tensor;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (!is_fake(self)) ++(non_blocking ? counters().uploads : counters().blocking_uploads);
  if (!is_fake(dst)) ++(non_blocking ? counters().downloads : counters().waits);
  host_side(dst).copy_(host_side(self));
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar item(const at::Tensor& self) {
  ++counters().waits;
  return host_side(self).item();
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  std::optional<at::Tensor> host_bias;
  if (bias && bias->defined()) host_bias = host_side(*bias);
  return view_as(at::convolution(host_side(input), host_side(weight), host_bias, stride, padding, dilation,
                                 transposed, output_padding, groups),
                 input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  const std::vector<int64_t> bias_sizes = {gradient.size(1)};
  auto [of_input, of_weight, of_bias] =
      at::convolution_backward(host_side(gradient), host_side(input), host_side(weight), bias_sizes, stride,
                               padding, dilation, transposed, output_padding, groups, mask);
  const auto back = [&](const at::Tensor& made) {
    return made.defined() ? view_as(made, input.device()) : made;
  };
  return {back(of_input), back(of_weight), back(of_bias)};
}

thread_local c10::DeviceIndex current = 0;

struct FakeEvent {
  std::chrono::steady_clock::time_point recorded;
  std::atomic<int64_t> queries_left;
};

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return kFake; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device old(kFake, current);
    current = device.index();
    return old;
  }
  at::Device getDevice() const override { return {kFake, current}; }
  void setDevice(at::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(at::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kFake, device.has_index() ? device.index() : current});
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(at::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new FakeEvent{};
    auto* const made = static_cast<FakeEvent*>(*event);
    made->recorded = std::chrono::steady_clock::now();
    made->queries_left = counters().late.load();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    auto& left = static_cast<FakeEvent*>(event)->queries_left;
    return left <= 0 || left.fetch_sub(1) <= 1;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    const auto time = static_cast<FakeEvent*>(end)->recorded - static_cast<FakeEvent*>(begin)->recorded;
    return std::chrono::duration<double, std::milli>(time).count();
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++counters().waits; }
  void synchronizeEvent(void* event) const override { static_cast<FakeEvent*>(event)->queries_left = 0; }
  void synchronizeDevice(c10::DeviceIndex) const override { ++counters().waits; }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(at::kCPU); }
  bool isPinnedPtr(const void*) const override { return true; }
  // The processor's, whose kernels draw.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

const bool registered = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard)

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

}  // namespace

at::Device fake_device(int64_t index) { return {kFake, static_cast<c10::DeviceIndex>(index)}; }

FakeDeviceCounts fake_device_counts() {
  const Counters& c = counters();
  return {c.operators, c.uploads, c.blocking_uploads, c.downloads, c.waits};
}

void reset_fake_device(int64_t late) {
  Counters& c = counters();
  c.operators = c.uploads = c.blocking_uploads = c.downloads = c.waits = 0;
  c.late = late;
}

}  // namespace pipewright::testing

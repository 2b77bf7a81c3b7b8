#include "tests/support/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>

namespace pipewright::testing {
namespace {

constexpr at::DeviceType kFake = at::kPrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;

struct Counters {
  std::atomic<int64_t> operators = 0, uploads = 0, blocking_uploads = 0, downloads = 0, waits = 0, late = 0;
  std::atomic<int64_t> event_waits = 0;
};
Counters& counters() {
  static Counters counters;
  return counters;
}

class DeviceClock {
 public:
  void set(std::function<double(const std::string&)> seconds_of) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seconds_of_ = std::move(seconds_of);
    seconds_ = 0;
  }
  void run(const std::string& op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (seconds_of_) seconds_ += seconds_of_(op);
  }
  double seconds() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (seconds_of_) return seconds_;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  std::mutex mutex_;
  std::function<double(const std::string&)> seconds_of_;
  double seconds_ = 0;
};
DeviceClock& device_clock() {
  static DeviceClock clock;
  return clock;
}

// Memory comes from the processor's kernels; here it is counted.
class FakeAllocator final : public c10::DeviceAllocator {
 public:
  void took(void* block, size_t bytes, c10::DeviceIndex device) { change(block, bytes, device, true); }
  void gave_back(void* block, size_t bytes, c10::DeviceIndex device) { change(block, bytes, device, false); }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0] = stats.reserved_bytes[0] = bytes_.at(static_cast<size_t>(device));
    return stats;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_.at(static_cast<size_t>(device)).reset_peak();
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::DataPtr allocate(size_t) override { TORCH_CHECK(false, "the fake device makes no memory itself"); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  void change(void* block, size_t bytes, c10::DeviceIndex device, bool more) {
    if (bytes == 0) return;
    int64_t now = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto& stat = bytes_.at(static_cast<size_t>(device));
      more ? stat.increase(bytes) : stat.decrease(bytes);
      now = stat.current;
    }
    const auto change = static_cast<int64_t>(bytes);
    c10::reportMemoryUsageToProfiler(block, more ? change : -change, static_cast<size_t>(now),
                                     static_cast<size_t>(now), {kFake, device});
  }

  std::mutex mutex_;
  std::array<c10::CachingAllocator::Stat, kDevices> bytes_;
};
FakeAllocator& allocator() {
  static auto* const allocator = new FakeAllocator;  // for tensors that live to the end of the process
  return *allocator;
}

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kFake; }

// A tensor of the storage with the other's sizes and dtype.
at::Tensor tensor_on(c10::Storage storage, const at::Tensor& tensor) {
  const auto keys = storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  at::Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(keys), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

// The same memory seen from the other side. Whoever holds the view holds the memory. What comes to the device
// is memory that a kernel has just made for it.
at::Tensor view_as(const at::Tensor& tensor, at::Device device) {
  struct Holder {
    Holder(c10::Storage held, at::Device device)
        : storage(std::move(held)), device(device), block(storage.mutable_data()), bytes(storage.nbytes()) {
      if (device.type() == kFake) allocator().took(block, bytes, device.index());
    }
    ~Holder() {
      if (device.type() == kFake) allocator().gave_back(block, bytes, device.index());
    }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;

    c10::Storage storage;
    at::Device device;
    void* block;
    size_t bytes;
  };
  const c10::Storage& storage = tensor.storage();
  auto* holder = new Holder(storage, device);
  at::DataPtr data(
      storage.mutable_data(), holder, [](void* held) { delete static_cast<Holder*>(held); }, device);
  auto impl =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                            std::move(data), c10::GetAllocator(at::kCPU), /*resizable=*/true);
  return tensor_on(c10::Storage(std::move(impl)), tensor);
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
    for (const auto& [theirs, ours] : pairs_)  // a view of what it was given
      if (theirs.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl())
        return tensor_on(ours.storage(), tensor);
    return view_as(tensor, device_);
  }

  const c10::OperatorHandle& op_;
  at::Device device_{kFake, 0};
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

void fallback(const c10::OperatorHandle& op, c10::Stack* stack) {
  ++counters().operators;
  device_clock().run(op.schema().name());
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
  device_clock().run("aten::_copy_from");
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
  device_clock().run("aten::convolution_overrideable");
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
  device_clock().run("aten::convolution_backward_overrideable");
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
  std::atomic<int64_t> queries_left;
  // Of an event that has a time:
  int64_t number = 0;  // in the order of recording
  double seconds = 0;  // by the device's clock
};
std::atomic<int64_t> timing_events = 0;
std::atomic<int64_t> timing_events_reached = 0;

void reach(int64_t number) {
  int64_t reached = timing_events_reached;
  while (reached < number && !timing_events_reached.compare_exchange_weak(reached, number)) {
  }
}

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

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (!*event) *event = new FakeEvent{};
    auto* const made = static_cast<FakeEvent*>(*event);
    made->queries_left = counters().late.load();
    if (flag != c10::EventFlag::BACKEND_DEFAULT) return;
    made->number = ++timing_events;
    made->seconds = device_clock().seconds();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    const int64_t number = static_cast<FakeEvent*>(event)->number;
    if (number > 0) return number <= timing_events_reached;
    auto& left = static_cast<FakeEvent*>(event)->queries_left;
    return left <= 0 || left.fetch_sub(1) <= 1;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<FakeEvent*>(event);
  }
  double elapsedTime(void* begin, void* end, c10::DeviceIndex) const override {
    return 1e3 * (static_cast<FakeEvent*>(end)->seconds - static_cast<FakeEvent*>(begin)->seconds);
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait_for_all(); }
  void synchronizeEvent(void* event) const override {
    ++counters().event_waits;
    static_cast<FakeEvent*>(event)->queries_left = 0;
    reach(static_cast<FakeEvent*>(event)->number);
  }
  void synchronizeDevice(c10::DeviceIndex) const override { wait_for_all(); }

 private:
  static void wait_for_all() {
    ++counters().waits;
    reach(timing_events);
  }
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
  c10::SetAllocator(kFake, &allocator());
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

// Autocast's list: the operators that pay, and one that is sensitive.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macros want this name
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
}

}  // namespace

at::Device fake_device(int64_t index) { return {kFake, static_cast<c10::DeviceIndex>(index)}; }

FakeDeviceCounts fake_device_counts() {
  const Counters& c = counters();
  return {c.operators, c.uploads, c.blocking_uploads, c.downloads, c.waits, c.event_waits};
}

void reset_fake_device(int64_t late) {
  Counters& c = counters();
  c.operators = c.uploads = c.blocking_uploads = c.downloads = c.waits = c.event_waits = 0;
  c.late = late;
}

void set_fake_clock(std::function<double(const std::string&)> seconds_of) {
  device_clock().set(std::move(seconds_of));
}

}  // namespace pipewright::testing

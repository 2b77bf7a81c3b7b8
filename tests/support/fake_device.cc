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

#include "tests/support/fake_recorder.h"

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

// Memory comes from the CPU's kernels; here it is counted.
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
  ++counters().operators;
  device_clock().run(op.schema().name());
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

at::Tensor host_side(const at::Tensor& tensor) {
  return is_fake(tensor) ? view_as(tensor, at::kCPU) : tensor;
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
  if (!is_fake(self)) ++(non_blocking ? counters().uploads : counters().blocking_uploads);
  if (!is_fake(dst)) ++(non_blocking ? counters().downloads : counters().waits);
  device_clock().run("aten::_copy_from");
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
  ++counters().waits;
  return host_side(self).item();
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  device_clock().run("aten::convolution_overrideable");
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
  device_clock().run("aten::convolution_backward_overrideable");
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
  static at::Device indexed(at::Device device) {
    return {kFake, device.has_index() ? device.index() : current};
  }
  static c10::Stream stream_of(at::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
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
    const at::Device here = indexed(device);
    return stream_of(here, fake_stream(here.index()));
  }
  c10::Stream getDefaultStream(at::Device device) const override { return stream_of(indexed(device), 0); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override {
    return stream_of(indexed(device), new_fake_stream());
  }
  c10::Stream getNewStream(at::Device device, int) const override {
    return stream_of(indexed(device), new_fake_stream());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(stream.device(), exchange_fake_stream(stream.device_index(), stream.id()));
  }
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
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_while_recording(stream.device_index(), "waiting for a stream");
    wait_for_all();
  }
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
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_fake_generator(index < 0 ? current : index);
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

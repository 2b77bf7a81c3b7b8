#include "tests/support/fake_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <mutex>
#include <utility>

namespace pipewright::testing {
namespace {

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
  std::array<c10::CachingAllocator::Stat, kFakeDevices> bytes_;
};
FakeAllocator& allocator() {
  static auto* const allocator = new FakeAllocator;  // for tensors that live to the end of the process
  return *allocator;
}

}  // namespace

c10::Allocator* fake_allocator() { return &allocator(); }

bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kFake; }

at::Tensor tensor_on(c10::Storage storage, const at::Tensor& tensor) {
  const auto keys = storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  at::Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(keys), tensor.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

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

at::Tensor host_side(const at::Tensor& tensor) {
  return is_fake(tensor) ? view_as(tensor, at::kCPU) : tensor;
}

}  // namespace pipewright::testing

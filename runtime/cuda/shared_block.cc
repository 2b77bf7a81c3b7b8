#include "runtime/cuda/shared_block.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "runtime/cuda/check.h"

namespace pipewright {
namespace {

// An event that two processes see. Its handle, not its maker, is what the other process opens.
class SharedEvent {
 public:
  SharedEvent() {
    PW_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventInterprocess));
  }
  explicit SharedEvent(const cudaIpcEventHandle_t& handle) {
    PW_CUDA(cudaIpcOpenEventHandle(&event_, handle));
  }
  ~SharedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  cudaIpcEventHandle_t handle() const {
    cudaIpcEventHandle_t handle{};
    PW_CUDA(cudaIpcGetEventHandle(&handle, event_));
    return handle;
  }
  void record(cudaStream_t stream) { PW_CUDA(cudaEventRecord(event_, stream)); }
  // An event that was never recorded holds nobody up: so a first filling waits for no reader.
  void hold_up(cudaStream_t stream) { PW_CUDA(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

struct HandleHead {
  int64_t bytes = 0;
  int64_t offset = 0;  // of the block in the memory that the rest of the handle names
  cudaIpcEventHandle_t filled{};
  cudaIpcEventHandle_t read{};
};

class CudaBlock : public SharedBlock {
 public:
  CudaBlock(at::Device device, int64_t bytes)
      : device_(device), memory_(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device))) {
    const auto shared = c10::cuda::CUDACachingAllocator::shareIpcHandle(memory_.data_ptr());
    const HandleHead head{bytes, static_cast<int64_t>(shared.offset), filled_.handle(), read_.handle()};
    handle_.assign(reinterpret_cast<const char*>(&head), sizeof(head));
    handle_ += shared.handle;
  }

  CudaBlock(at::Device device, const std::string& handle, const HandleHead& head)
      : device_(device), handle_(handle), filled_(head.filled), read_(head.read) {
    // LibTorch's allocator opens a piece of memory once, however many blocks lie in it.
    std::shared_ptr<void> base = c10::cuda::CUDACachingAllocator::getIpcDevPtr(handle.substr(sizeof(head)));
    memory_ = at::from_blob(
        static_cast<char*>(base.get()) + head.offset, {head.bytes}, [base](void*) mutable { base.reset(); },
        at::TensorOptions().dtype(at::kByte).device(device));
  }

  const std::string& handle() const override { return handle_; }

  void fill(const at::Tensor& tensor) override {
    read_.hold_up(stream());
    copy(memory_.data_ptr(), tensor.data_ptr(), tensor.nbytes());
    filled_.record(stream());
  }

  void read_into(const at::Tensor& tensor) override {
    filled_.hold_up(stream());
    copy(tensor.data_ptr(), memory_.data_ptr(), tensor.nbytes());
    read_.record(stream());
  }

 private:
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream(device_.index()).stream(); }
  void copy(void* to, const void* from, size_t bytes) const {
    PW_CHECK_LE(bytes, memory_.nbytes());
    PW_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()));
  }

  at::Device device_;
  at::Tensor memory_;
  std::string handle_;
  SharedEvent filled_;
  SharedEvent read_;
};

class CudaBlocks : public BlockSharing {
 public:
  explicit CudaBlocks(at::Device device) : device_(device) {}

  std::unique_ptr<SharedBlock> make(int64_t bytes) override {
    return translated([&] { return std::make_unique<CudaBlock>(device_, bytes); });
  }

  std::unique_ptr<SharedBlock> open(const std::string& handle) override {
    HandleHead head;
    if (handle.size() <= sizeof(head)) throw RunError("CUDA: the handle of a block is cut short");
    std::memcpy(&head, handle.data(), sizeof(head));
    return translated([&] { return std::make_unique<CudaBlock>(device_, handle, head); });
  }

 private:
  // LibTorch's own errors, in one line.
  template <typename Make>
  std::unique_ptr<SharedBlock> translated(const Make& make) const {
    const c10::DeviceGuard guard(device_);
    try {
      return make();
    } catch (const c10::Error& error) {
      throw RunError(std::string("CUDA: memory between processes: ") + error.what_without_backtrace());
    }
  }

  at::Device device_;
};

}  // namespace

std::unique_ptr<BlockSharing> share_blocks_of(int64_t device) {
  return std::make_unique<CudaBlocks>(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
}

}  // namespace pipewright

#include "runtime/transport/copy_engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>

namespace pipewright {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

class EventPoint : public StreamPoint {
 public:
  explicit EventPoint(at::Device device) : device_(device), event_(device.type()) {}
  void record(const c10::Stream& stream) { event_.record(stream); }
  void wait_on_host() override { event_.synchronize(); }
  void wait_on_stream() override { event_.block(current_stream(device_)); }

 private:
  at::Device device_;
  c10::Event event_;
};

class DeviceCopyEngine : public CopyEngine {
 public:
  explicit DeviceCopyEngine(at::Device device) : device_(device), down_(device), up_(device) {}

  at::Tensor host_buffer(int64_t bytes) override {
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }

  std::shared_ptr<StreamPoint> here() override { return point_of_current_stream(device_); }

  std::shared_ptr<StreamPoint> download(const at::Tensor& from, const at::Tensor& to,
                                        const std::shared_ptr<StreamPoint>& after) override {
    return copy(down_, from, to, after);
  }
  std::shared_ptr<StreamPoint> upload(const at::Tensor& from, const at::Tensor& to,
                                      const std::shared_ptr<StreamPoint>& after) override {
    return copy(up_, from, to, after);
  }

 private:
  struct Lane {
    explicit Lane(at::Device device)
        : stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true)) {}
    c10::Stream stream;
    std::mutex mutex;  // wait, copy and record belong together
  };

  std::shared_ptr<StreamPoint> copy(Lane& lane, const at::Tensor& from, at::Tensor to,
                                    const std::shared_ptr<StreamPoint>& after) {
    auto point = std::make_shared<EventPoint>(device_);
    const std::lock_guard lock(lane.mutex);
    const at::NoGradGuard no_grad;
    const c10::StreamGuard guard(lane.stream);
    after->wait_on_stream();
    to.copy_(from, /*non_blocking=*/true);
    point->record(lane.stream);
    return point;
  }

  at::Device device_;
  Lane down_;
  Lane up_;
};

}  // namespace

std::shared_ptr<StreamPoint> point_of_current_stream(at::Device device) {
  auto point = std::make_shared<EventPoint>(device);
  point->record(current_stream(device));
  return point;
}

std::unique_ptr<CopyEngine> make_copy_engine(at::Device device) {
  return std::make_unique<DeviceCopyEngine>(device);
}

}  // namespace pipewright

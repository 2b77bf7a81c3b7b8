// Copies between a device and the host that go on beside what the device computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace pipewright {

/// A point in the order of a stream: reached when all that the stream was given before it is done.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  /// The host waits.
  virtual void wait_on_host() = 0;
  /// What the calling thread's current stream is given from now on waits; the host does not.
  virtual void wait_on_stream() = 0;
};

/// The end of what the calling thread's current stream of the device has been given.
std::shared_ptr<StreamPoint> point_of_current_stream(at::Device device);

/// The streams of one device for copies in each direction. Any thread may call.
class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  /// Host memory that the device reaches by itself, as bytes; freed like any tensor, also while a copy that
  /// this engine was given still uses it.
  virtual at::Tensor host_buffer(int64_t bytes) = 0;
  /// As point_of_current_stream(), of the engine's device.
  virtual std::shared_ptr<StreamPoint> here() = 0;
  /// `to` becomes `from` (contiguous, of one shape and dtype), not before `after`; the result is reached when
  /// it has. The device's tensor must live until then.
  virtual std::shared_ptr<StreamPoint> download(const at::Tensor& from, const at::Tensor& to,
                                                const std::shared_ptr<StreamPoint>& after) = 0;
  virtual std::shared_ptr<StreamPoint> upload(const at::Tensor& from, const at::Tensor& to,
                                              const std::shared_ptr<StreamPoint>& after) = 0;
};

/// For any device that LibTorch has streams, events and pinned memory for.
std::unique_ptr<CopyEngine> make_copy_engine(at::Device device);

}  // namespace pipewright

// Between the device that is none and its recordings: for the fake_*.cc of tests/support.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Stream.h>

#include <functional>
#include <vector>

namespace pipewright::testing {

/// The stream that this thread uses on a device of PrivateUse1; 0 is the default one.
c10::StreamId exchange_fake_stream(c10::DeviceIndex device, c10::StreamId stream);
c10::StreamId fake_stream(c10::DeviceIndex device);
c10::StreamId new_fake_stream();

/// The device's default generator. It draws nothing itself: the CPU's kernels do, and it seeds theirs.
at::Generator& default_fake_generator(c10::DeviceIndex device);

/// Takes the operators down that reach the device on the stream of a recording.
class FakeRecorder {
 public:
  virtual ~FakeRecorder() = default;
  /// Of this thread's stream on the device, or null.
  static FakeRecorder* current(c10::DeviceIndex device);

  /// The host's view of a tensor of the device, as a recording holds it: the memory belongs to others.
  virtual at::Tensor borrow(const at::Tensor& host_view) = 0;
  /// Behind a call that made `on_host`, seen as `on_device`, one by one: `again` makes the same of borrowed
  /// memory. `draws`: from the default generator.
  virtual void add(std::function<std::vector<at::Tensor>()> again, const std::vector<at::Tensor>& on_host,
                   const std::vector<at::Tensor>& on_device, bool draws) = 0;
};

/// Throws, as CUDA would, if this thread's stream is being recorded.
void refuse_while_recording(c10::DeviceIndex device, const char* what);

}  // namespace pipewright::testing

// Work of a device that is recorded once and started again with one call. CUDA's is in runtime/cuda/graph.h;
// nothing of CUDA is known here.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace pipewright {

/// One recording. It reads and writes the addresses that it was recorded with: whoever replays it sees to it
/// that what belongs there lies there.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Does the work again, behind what is on the current stream; the host does not wait. RunError with the
  /// device's words if it cannot be started.
  virtual void replay() = 0;
  /// Kernels, copies and the like in it: what would have been started one by one.
  virtual int64_t size() const = 0;
};

/// Makes recordings that share memory, block by block: what a recording allocates and nobody holds any more
/// may be taken by any later one of the same DeviceGraphs, and by the rest of its own. So a replay may write
/// over every block but those that were held from before its recording began until after it had ended, and
/// they are replayed one after the other on one stream. In particular a value lives from the replay that
/// makes it to the replay of every recording that was made while it was held, and of no other. Outlives its
/// recordings. One thread.
class DeviceGraphs {
 public:
  virtual ~DeviceGraphs() = default;
  /// Runs `work` on the host. What it starts on the device, from this thread and from autograd's, is recorded
  /// and not done. `generators`: those that it draws from; a replay draws from the states that they have then
  /// and moves them on. Work that waits for the device, or copies from or to the host, is refused: RunError,
  /// or what `work` itself throws, comes out, and the device is as before: so are earlier recordings, and
  /// later ones can be made.
  virtual std::unique_ptr<DeviceGraph> record(const std::function<void()>& work,
                                              const std::vector<at::Generator>& generators) = 0;
};

/// Makes one for a device; empty: there are none.
using MakeDeviceGraphs = std::function<std::unique_ptr<DeviceGraphs>(at::Device)>;

}  // namespace pipewright

// A transport within the device, whose messages keep it waiting (NCCL's: a kernel of the receiver runs until
// the sender's has met it), made safe: no half of a message is launched before the other one is about to be.
//
// Why: the host may wait for all that its device was given, and often does so unseen: a library loads a
// kernel's code, an allocator frees memory. If the device waits for a message whose sender in turn waits for
// what this host would launch next, nobody goes on. Here a launched kernel waits for launched ones alone, so
// what a device was given always ends, whatever the hosts do.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "runtime/transport/copy_engine.h"
#include "runtime/transport/device_links.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Streams of a device, one for each lane that is used. Any thread may call.
class LaunchLanes {
 public:
  virtual ~LaunchLanes() = default;
  /// As point_of_current_stream().
  virtual std::shared_ptr<StreamPoint> here() = 0;
  /// Runs `launch` on the calling thread with the lane's stream as the current one, behind `after`. The
  /// result is reached when all that it launched is done.
  virtual std::shared_ptr<StreamPoint> run(size_t lane, const std::shared_ptr<StreamPoint>& after,
                                           const std::function<void()>& launch) = 0;
};

/// For any device that LibTorch has streams and events for. LibTorch has 32 streams of a kind: lanes beyond,
/// and NCCL's communicators beyond, share them, and messages of lanes that share a stream wait for each
/// other.
std::unique_ptr<LaunchLanes> make_launch_lanes(at::Device device);

/// Messages over the links and sums over the ranks of `links`, which `device` carries: its waits keep the
/// stream waiting, not the host. The ranks agree over `host`, with tags of kPairTags and above; others may
/// send with it. Each link has a thread and, of `lanes`, a stream: of the sender it
/// waits until the receiver has memory for the message, tells it so and launches; of the receiver it waits
/// for that word. The host waits in wait() until the message is launched. A sum is launched when all its
/// ranks have come to it.
std::unique_ptr<Transport> make_paired_transport(std::shared_ptr<Transport> host,
                                                 std::unique_ptr<Transport> device,
                                                 std::unique_ptr<LaunchLanes> lanes, DeviceLinks links);

constexpr int64_t kPairTags = int64_t{1} << 28;

}  // namespace pipewright

// One transport for a whole job: memory between ranks of one host, Gloo between hosts; between GPUs NCCL, or
// either of the two through the host's memory; between ranks that share a GPU its memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/device_links.h"
#include "runtime/transport/message.h"
#include "runtime/transport/store.h"
#include "runtime/transport/transport.h"

namespace pipewright {

class CudaPlugin;

/// Each message goes through the one of two transports of the same rank that `uses_second` (by peer) says.
std::unique_ptr<Transport> make_routed_transport(std::unique_ptr<Transport> first,
                                                 std::unique_ptr<Transport> second,
                                                 std::vector<bool> uses_second);

/// Messages of the CPU's tensors go through `host`, those of others through `device`; those of several
/// tensors packed, where both ends have a device (`has_device`, by rank).
std::unique_ptr<Transport> make_device_routed_transport(std::shared_ptr<Transport> host,
                                                        std::unique_ptr<Transport> device,
                                                        std::vector<bool> has_device, Packer packer);

struct ConnectSettings {
  /// A row of graph/transport_rules.h: for the CPU's tensors. Of a device's: as choose_device_path() says.
  std::string transport = "auto";
  std::string gloo_address;  ///< as for make_gloo_transport
  std::chrono::milliseconds timeout{30'000};
  /// Called about once a second while peers are waited for; may throw: they may have failed.
  std::function<void()> check = [] {};
  int64_t cores = 1;             ///< of this host, for the ranks on it
  at::Device device = at::kCPU;  ///< of this rank
  CudaPlugin* cuda = nullptr;    ///< if the device is a GPU
  DeviceLinks links;             ///< of the job, for NCCL
};

/// Connects all ranks; every rank calls it with the same `transport`, `links` and `name`. PeerError if the
/// ranks do not all come within the time-out; with "shm" also for ranks on several hosts.
std::unique_ptr<Transport> connect_ranks(Store& store, const std::string& name, int64_t rank,
                                         int64_t world_size, const ConnectSettings& settings);

/// Every pair of ranks exchanges a message, so that what a first message costs is paid before training, and a
/// link that does not work is noticed. Every rank calls it; it waits as any message does.
void warm_links(Transport& transport);

}  // namespace pipewright

// How ranks send each other tensors (`--transport`), a row each. What a row does with them is
// runtime/transport/connect.h.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

/// By which way tensors of GPUs go.
enum class DeviceWay {
  /// NCCL where every rank has a GPU of its own, the memory of a GPU that ranks share, otherwise the host's.
  kFastest,
  kHost,  ///< through the host's memory, as its own tensors
  kNccl,  ///< NCCL; refused where it cannot be
};

struct TransportFacts {
  const char* name;
  /// Tensors of the CPU, between ranks of one host: through memory that they share, where they can.
  bool uses_memory;
  /// Between ranks that no memory joins. Otherwise such ranks are refused.
  bool uses_network;
  DeviceWay device_way;
  const char* summary;

  bool needs_gpus() const { return device_way == DeviceWay::kNccl; }
};
const std::vector<TransportFacts>& transport_rules();
/// InputError with the nearest name.
const TransportFacts& transport_facts(const std::string& name);

}  // namespace pipewright

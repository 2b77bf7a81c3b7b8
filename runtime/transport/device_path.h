// By which way tensors of devices go from rank to rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// The device of a rank, as all ranks tell each other.
struct RankDevice {
  bool is_gpu = false;       ///< or another device that is not the CPU
  std::string identity;      ///< of the GPU: equal for ranks that share it
  std::string name;          ///< for people
  int64_t nccl_version = 0;  ///< 22809 is 2.28.9; 0: NCCL does not know the device

  std::string to_text() const;
  /// The inverse; PeerError for anything else.
  static RankDevice from_text(const std::string& text);
};

enum class DevicePath {
  kNone,    ///< there are no tensors of devices
  kStaged,  ///< through the host's memory and its transport
  kNccl,
};

/// `transport`: a row of graph/transport_rules.h, whose DeviceWay decides. InputError for "nccl" where NCCL
/// would refuse, with the remedy: a rank without a GPU, or ranks that share one (NCCL before 2.30). The same
/// on all ranks.
DevicePath choose_device_path(const std::string& transport, const std::vector<RankDevice>& ranks);

}  // namespace pipewright

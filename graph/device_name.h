// The name of a device: what --device and `device` of run.json hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipewright {

struct DeviceName {
  bool cuda = false;             ///< else the host's CPU
  std::optional<int64_t> index;  ///< "cuda:K" says K; "cuda" leaves it to the rank (docs/gpu.md)
};

/// Of "cpu", "cuda" or "cuda:K". InputError that begins with `where`, with the nearest, for anything else.
DeviceName device_name(const std::string& text, const std::string& where);

}  // namespace pipewright

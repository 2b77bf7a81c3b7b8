// How much memory there is to be had.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace pipewright {

struct MemoryThere {
  int64_t bytes;
  std::string what;  ///< for messages: "of memory are free", "are the limit of this process (ulimit -v)"
};

/// Of the host: the least of what it has free (MemAvailable) and what this process may have (RLIMIT_AS). Of
/// another device: what its allocator says is free on it. Where nobody says: all there is.
MemoryThere memory_there(c10::Device device = c10::kCPU);

}  // namespace pipewright

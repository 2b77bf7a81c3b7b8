#include "models/memory/free_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>

namespace pipewright {
namespace {

constexpr int64_t kAllThereIs = std::numeric_limits<int64_t>::max();

int64_t free_host_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string key; info >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) return kib * 1024;
    info.ignore(1 << 12, '\n');
  }
  return kAllThereIs;
}

int64_t free_device_bytes(c10::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator) return kAllThereIs;
  try {
    return static_cast<int64_t>(allocator->getMemoryInfo(device.index()).first);
  } catch (const c10::Error&) {  // it does not say
    return kAllThereIs;
  }
}

}  // namespace

MemoryThere memory_there(c10::Device device) {
  if (!device.is_cpu()) return {free_device_bytes(device), "are free on the device"};
  MemoryThere there{free_host_bytes(), "of memory are free"};
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(there.bytes))
    there = {static_cast<int64_t>(limit.rlim_cur), "are the limit of this process (ulimit -v)"};
  return there;
}

}  // namespace pipewright

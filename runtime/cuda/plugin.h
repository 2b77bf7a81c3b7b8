// All that the programs know of CUDA: an abstract class. Its implementation is the shared library
// libpipewright_cuda.so beside the programs, which models/device.h opens when a device of CUDA is asked for;
// the programs link no CUDA library. No header of CUDA is included here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// Changes with this file: a plug-in of another build is refused instead of called.
constexpr int kCudaPluginInterface = 1;

/// `device`: the number of a device of this process, as CUDA_VISIBLE_DEVICES leaves them. Any thread may
/// call. RunError with CUDA's own words where a call of CUDA fails.
class CudaPlugin {
 public:
  virtual ~CudaPlugin() = default;

  /// A line each for --version: the toolkit that the plug-in was built with, the runtime, the driver, NCCL.
  /// Needs no device.
  virtual std::vector<std::string> versions() = 0;
  /// "NVIDIA H100 80GB HBM3".
  virtual std::string device_name(int64_t device) = 0;
  /// The same for two ranks if and only if they have the same device, whatever number it has there.
  virtual std::string device_identity(int64_t device) = 0;

  /// A named range on the time lines of NVIDIA's tools; ranges of a thread nest.
  virtual void begin_range(const std::string& name) = 0;
  virtual void end_range() = 0;
};

}  // namespace pipewright

extern "C" {
/// The one function that the library exports. Owned by the library, for the life of the process; null if
/// `interface_version` is not the one that it was built with.
using PipewrightCudaPlugin = pipewright::CudaPlugin*(int interface_version);
}

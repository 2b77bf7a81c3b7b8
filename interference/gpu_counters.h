// What NVIDIA's management library (NVML) says of a GPU. It is opened when a GPU is asked for: no program
// links it, and a machine without it has none of the numbers.
#pragma once

#include <limits>
#include <memory>
#include <string>

namespace pipewright {

/// One moment. NaN: NVML does not say.
struct GpuReading {
  static constexpr double kNotSaid = std::numeric_limits<double>::quiet_NaN();

  /// Shares of the last second or so, 0..1: NVML's sample periods are a sixth of a second to a second long.
  double others = kNotSaid;       ///< in which its multiprocessors ran other processes
  double busy = kNotSaid;         ///< in which they ran anything
  double memory_busy = kNotSaid;  ///< in which its memory was read or written
  double gigahertz = kNotSaid;    ///< of its multiprocessors
  double throttled = kNotSaid;    ///< 1: the clock is held down for power or heat; else 0
};

/// NVML counts processes by the host's numbers. In a container that has numbers of its own `others` therefore
/// has this process too. Ranks that share a GPU are others to each other.
class GpuCounters {
 public:
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";

  /// `identity`: CudaPlugin::device_identity(). `library`: NVML, another one in tests. No error where it is
  /// missing, fails, or does not know the device, as it knows no part of one (MIG): read() then has no
  /// number.
  explicit GpuCounters(const std::string& identity, const std::string& library = kLibrary);
  ~GpuCounters();
  GpuCounters(const GpuCounters&) = delete;
  GpuCounters& operator=(const GpuCounters&) = delete;

  /// A call that the library lacks, or that fails, leaves its numbers out.
  GpuReading read() const;

 private:
  class Nvml;
  std::unique_ptr<const Nvml> nvml_;
};

/// "GPU-01234567-89ab-cdef-0123-456789abcdef", as NVML names the device whose 16 bytes CUDA has as 32 digits;
/// "" for a text of another length.
std::string nvml_name(const std::string& identity);

}  // namespace pipewright

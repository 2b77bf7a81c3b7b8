// The driver's record of what a device did, by LibTorch's profiler.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace pipewright {

/// A kernel, a copy or a fill.
struct TracedKernel {
  std::chrono::system_clock::time_point launched;  ///< in the middle of the host's call
  int64_t begin_ns = 0, end_ns = 0;                ///< by the device's clock

  double seconds() const { return 1e-9 * static_cast<double>(end_ns - begin_ns); }
};

/// While alive the driver keeps its record. One at a time in the process, and no other use of LibTorch's
/// profiler beside it.
class KernelTrace {
 public:
  /// Whether a driver may keep one of the device's work.
  static bool is_possible(at::Device device) { return device.is_cuda(); }
  explicit KernelTrace(at::Device device);
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  /// Waits for the device and ends the record: what was launched since construction, in the order of the
  /// launches. Empty where nothing keeps one (the CPU, or a build without the driver's tracer). Once.
  std::vector<TracedKernel> end();

 private:
  at::Device device_;
  bool records_;
};

/// Of kernels in the order of their launches, what a device takes from the end of one to the begin of the
/// next where the host is ahead: the shortest tenth of all gaps. At most 1 us, which an H200 takes: where
/// gaps are longer, the host is behind everywhere and they tell of nothing else. 0 of fewer than two.
double kernel_gap_seconds(const std::vector<TracedKernel>& kernels);

}  // namespace pipewright

// Points in a device's work, and the time between them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "profiler/kernel_trace.h"

namespace pipewright {

/// What lies between two marks, as it was for the device and for the host.
struct Stretch {
  /// From the end of what the device was given before the first mark to the end of what it was given before
  /// the second. While the host is behind, the device waits between the two, and that counts: nothing but the
  /// device could tell how long it worked.
  double device_seconds = 0;
  /// From the first call of set() to the second: what the host takes to give it. On the CPU the same
  /// number.
  double host_seconds = 0;
  /// What the device was given between the two, if its record was taken: how many kernels and copies, and
  /// what they took.
  int64_t kernels = 0;
  double kernel_seconds = 0;

  Stretch& operator+=(const Stretch& other);
};

/// On the CPU a mark is a look at two clocks, by the thread that computes. On a device it is also an event in
/// the order of the stream that is current where this object is made; setting one waits for nothing, and one
/// call waits for all.
///
///   Marks marks(device);
///   const size_t begin = marks.set();
///   ...
///   const size_t end = marks.set();
///   marks.wait();
///   marks.between(begin, end);
class Marks {
 public:
  using Clock = std::chrono::system_clock;  // the driver's record has its times

  explicit Marks(at::Device device);

  /// Forgets all marks; their events are used again.
  void clear();
  /// The number of the new mark: 0, 1, ... since clear(). From any thread, one at a time.
  size_t set();
  /// Until the device has come to the last mark. The only call that makes the host wait.
  void wait();
  /// What the device's driver has recorded since clear(). After wait().
  void take(const std::vector<TracedKernel>& kernels);
  /// After wait(); first <= second. On CUDA in steps of half a microsecond.
  Stretch between(size_t first, size_t second) const;

 private:
  c10::Stream stream_;
  bool on_host_;
  bool is_one_thread_;  // of LibTorch's, where this object is made
  std::vector<std::chrono::steady_clock::time_point> times_;
  std::vector<Clock::time_point> recorded_times_;
  // By launch, ascending: when, and the sum of seconds up to it.
  std::vector<Clock::time_point> launches_;
  std::vector<double> kernel_sums_;
  std::vector<double> core_seconds_;  // as many, of one thread on the host
  std::vector<c10::Event> events_;    // at least as many as times_, on a device
};

}  // namespace pipewright

// Points in a device's work, and the time between them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>
#include <vector>

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
  explicit Marks(at::Device device);

  /// Forgets all marks; their events are used again.
  void clear();
  /// The number of the new mark: 0, 1, ... since clear(). From any thread, one at a time.
  size_t set();
  /// Until the device has come to the last mark. The only call that makes the host wait.
  void wait();
  /// After wait(); first <= second. On CUDA in steps of half a microsecond.
  Stretch between(size_t first, size_t second) const;

 private:
  c10::Stream stream_;
  bool on_host_;
  bool is_one_thread_;  // of LibTorch's, where this object is made
  std::vector<std::chrono::steady_clock::time_point> times_;
  std::vector<double> core_seconds_;  // as many, of one thread on the host
  std::vector<c10::Event> events_;    // at least as many as times_, on a device
};

}  // namespace pipewright

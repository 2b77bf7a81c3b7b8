// Times the backward pass per node of the graph, while it runs as a whole.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace pipewright {

/// LibTorch numbers the functions of autograd in the order in which the forward pass makes them. These are
/// the numbers that belong to one node: [begin, end).
struct SequenceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// While alive, times each autograd function that runs on this thread and charges it to its node: from the
/// end of the function before (so that adding up gradients is counted too) to its own end. The start of the
/// engine, before the first function, is charged to nobody. One at a time per thread.
class BackwardClock {
 public:
  /// `nodes`: one range per node, ascending.
  explicit BackwardClock(std::vector<SequenceRange> nodes);
  ~BackwardClock();
  BackwardClock(const BackwardClock&) = delete;
  BackwardClock& operator=(const BackwardClock&) = delete;

  /// Per node, since construction.
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  void started();
  void ended(uint64_t sequence);

  std::vector<SequenceRange> nodes_;
  std::vector<double> seconds_;
  bool running_ = false;
  std::chrono::steady_clock::time_point last_;
  at::CallbackHandle handle_;
};

}  // namespace pipewright

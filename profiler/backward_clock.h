// Times the backward pass per node of the graph, while it runs as a whole.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "profiler/marks.h"

namespace pipewright {

/// LibTorch numbers the functions of autograd in the order in which the forward pass makes them. These are
/// the numbers that belong to one node: [begin, end).
struct SequenceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// While alive, marks the end of each autograd function that runs on behalf of this thread (for a device the
/// engine has a thread of its own) and charges the stretch before it to the function's node: from the end of
/// the function before (so that adding up gradients is counted too) to its own end. The start of the engine,
/// before the first function, is charged to nobody. One at a time in the process.
class BackwardClock {
 public:
  /// `nodes`: one range per node, ascending. Borrows `marks`, which nobody else sets while a backward runs.
  BackwardClock(std::vector<SequenceRange> nodes, Marks& marks);
  ~BackwardClock();
  BackwardClock(const BackwardClock&) = delete;
  BackwardClock& operator=(const BackwardClock&) = delete;

  /// Per node, since construction. After marks.wait().
  std::vector<Stretch> stretches() const;

 private:
  struct Charge {
    size_t node;
    size_t from, to;  // marks
  };

  void started();
  void ended(uint64_t sequence);

  std::vector<SequenceRange> nodes_;
  Marks& marks_;
  std::mutex mutex_;  // the engine may run several threads
  std::vector<Charge> charges_;
  std::optional<size_t> last_;  // mark
  at::CallbackHandle handle_;
};

}  // namespace pipewright

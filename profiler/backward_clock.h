// Times the backward pass per node of the graph, while it runs as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "profiler/backward_watch.h"
#include "profiler/marks.h"

namespace pipewright {

/// While alive, marks the end of each autograd function and charges the stretch before it to the function's
/// node: from the end of the function before (so that adding up gradients is counted too) to its own end. The
/// start of the engine, before the first function, is charged to nobody. One at a time in the process.
class BackwardClock {
 public:
  /// `nodes`: one range per node, ascending. Borrows `marks`, which nobody else sets while a backward runs.
  BackwardClock(std::vector<SequenceRange> nodes, Marks& marks);

  /// Per node, since construction. After marks.wait().
  std::vector<Stretch> stretches() const;

 private:
  struct Charge {
    size_t node;
    size_t from, to;  // marks
  };

  void started();
  void ended(std::optional<size_t> node);

  size_t nodes_;
  Marks& marks_;
  std::vector<Charge> charges_;
  std::optional<size_t> last_;  // mark
  BackwardWatch watch_;
};

}  // namespace pipewright

// Follows the backward pass node by node of the graph, while it runs as a whole.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace pipewright {

/// LibTorch numbers the functions of autograd in the order in which the forward pass makes them. These are
/// the numbers that belong to one node: [begin, end).
struct SequenceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// While alive, tells of each autograd function that runs on behalf of this thread (for a device the engine
/// has a thread of its own; the calls come from there, one at a time). One at a time in the process.
class BackwardWatch {
 public:
  using Started = std::function<void()>;
  using Ended = std::function<void(std::optional<size_t> node)>;  ///< nothing: a function of no node

  /// `nodes`: one range per node, ascending.
  BackwardWatch(std::vector<SequenceRange> nodes, Started started, Ended ended);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  std::optional<size_t> node_of(uint64_t sequence) const;

  std::vector<SequenceRange> nodes_;
  Started started_;
  Ended ended_;
  std::mutex mutex_;  // the engine may run several threads
  at::CallbackHandle handle_;
};

}  // namespace pipewright

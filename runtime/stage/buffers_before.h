// A stage's buffers as they were before the minibatches at which checkpoints are taken: they change with
// every forward, so they are copied before the forward that would change them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace pipewright {

class BuffersBefore {
 public:
  /// A span begins whose checkpoints are before these minibatches, ascending. Older copies go.
  void begin(const std::vector<int64_t>& checkpoints);
  /// The forward of minibatch k is about to change `buffers`.
  void forward_comes(int64_t k, const std::vector<at::Tensor>& buffers);
  /// As they were before minibatch n, once; a copy of `buffers`, as they are now, unless n is one of the
  /// checkpoints.
  std::vector<at::Tensor> take(int64_t n, const std::vector<at::Tensor>& buffers);

 private:
  std::deque<int64_t> checkpoints_;                    // before which no forward has come yet
  std::map<int64_t, std::vector<at::Tensor>> copies_;  // by checkpoint
};

}  // namespace pipewright

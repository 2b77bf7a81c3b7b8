// Where the gradients of a replicated stage lie: in a few flat tensors, each of which is summed over the
// replicas as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pipewright {

class GradientBuckets {
 public:
  /// One gradient for each of `parameters`, with its shape and dtype, on their device. They are packed from the last parameter
  /// to the first, the order in which a backward makes them, so that early buckets are complete while it
  /// runs. Neighbours of one dtype share a bucket of up to `most_bytes`; a larger gradient has its own.
  GradientBuckets(const std::vector<at::Tensor>& parameters, int64_t most_bytes);

  size_t count() const { return flat_.size(); }
  /// Of bucket b: one-dimensional, contiguous.
  const at::Tensor& flat(size_t b) const { return flat_[b]; }
  /// By parameter: views of the flat tensors.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  /// By parameter.
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }

 private:
  std::vector<at::Tensor> flat_;
  std::vector<at::Tensor> gradients_;
  std::vector<size_t> bucket_of_;
};

}  // namespace pipewright

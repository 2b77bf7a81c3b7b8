// Values of a minibatch as records of its samples, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace pipewright {

/// Of values that one place of a model makes, with the batch as dimension 0.
class PrefixRecords {
 public:
  /// `like`: the values of any minibatch; `dtype`: "float32" (all as they are) or "bfloat16" (float32 values
  /// are rounded).
  PrefixRecords(const std::vector<at::Tensor>& like, const std::string& dtype);

  size_t record_bytes() const { return record_bytes_; }
  /// One record for each sample, one behind the other.
  std::vector<std::byte> pack(const std::vector<at::Tensor>& values) const;
  /// The values, on their device, with the strides that they had: kernels choose by them, and so bits depend
  /// on them.
  std::vector<at::Tensor> unpack(std::span<const std::byte> records) const;

 private:
  struct Value {
    std::vector<int64_t> shape, strides;
    at::ScalarType type, kept;
    at::Device device = at::kCPU;
    size_t row_bytes = 0;
  };
  std::vector<Value> values_;
  size_t record_bytes_ = 0;
};

}  // namespace pipewright

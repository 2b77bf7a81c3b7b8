// The tensors of a model that is being trained, under their own names and those of checkpoint.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace pipewright {

class TensorsByName {
 public:
  virtual ~TensorsByName() = default;
  virtual bool has(const std::string& name) const = 0;
  /// A tensor that nobody else changes; it is there.
  virtual at::Tensor take(const std::string& name) = 0;
};

}  // namespace pipewright

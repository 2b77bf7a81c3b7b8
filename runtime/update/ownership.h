// May a tensor be changed in place?
#pragma once

#include <ATen/core/Tensor.h>

namespace pipewright {

/// Its holder is the only one: nobody else sees what is written to it.
inline bool unshared(const at::Tensor& tensor) {
  return tensor.defined() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace pipewright

// The fake device's memory, which is the host's: tensors seen from either side, and an allocator that counts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "tests/support/fake_state.h"

namespace pipewright::testing {

bool is_fake(const at::Tensor& tensor);

/// A tensor of the storage with the other's sizes and dtype.
at::Tensor tensor_on(c10::Storage storage, const at::Tensor& tensor);

/// The same memory seen from the other side. Whoever holds the view holds the memory. What comes to the
/// device is memory that a kernel has just made for it: it is counted.
at::Tensor view_as(const at::Tensor& tensor, at::Device device);

/// The tensor as the host's kernels see it.
at::Tensor host_side(const at::Tensor& tensor);

c10::Allocator* fake_allocator();

}  // namespace pipewright::testing

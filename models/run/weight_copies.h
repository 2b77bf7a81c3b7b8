// bfloat16 copies of float32 weights, made once for a version of them, for operators that autocast would have
// cast the weights again at every read (the device pass "weights-cast-once").
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace pipewright {

/// Memory for the copy of a weight, where it is.
at::Tensor room_for_copy(const at::Tensor& weight);
/// copies[i] becomes weights[i]; undefined copies are left out. Without autograd.
void cast_to_copies(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& copies);

/// What autocast's cast of `weight` would be: the numbers of its copy, in the copy's memory, and a gradient
/// that becomes one of the weight's dtype before it goes there, read by read. Under the caller's grad mode.
at::Tensor read_from_copy(const at::Tensor& weight, const at::Tensor& copy);

}  // namespace pipewright

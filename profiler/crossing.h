// Values that cross from one part of a model to later ones: how they are kept between the two, and how their
// gradients leave and enter a backward that ends or begins there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pipewright {

/// A piece of memory in which values lie that cross; several may share one.
struct CrossingMemory {
  at::Tensor bytes;             ///< a copy of all of it, on the host
  std::optional<size_t> maker;  ///< the node that allocated it; nothing: an input, a parameter, a buffer
  int64_t allocated_bytes = 0;  ///< as the device's allocator counted
  bool saved = false;           ///< a node so far keeps it for its backward: its maker's saved_bytes have it
};

struct CrossingValue {
  std::shared_ptr<CrossingMemory> memory;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool requires_grad = false;
  std::string owner;  ///< the value whose memory it is, as ProfiledNode::keeps names it: itself or an earlier
};
using CrossingValues = std::map<std::string, CrossingValue>;

/// All memory that the tensor's storage has, as bytes: no copy.
at::Tensor bytes_around(const at::Tensor& tensor);
/// `tensor` as it lies in `memory`, which keeps its bytes and is the value's of the name `owner`.
CrossingValue crossing_value(const at::Tensor& tensor, std::shared_ptr<CrossingMemory> memory,
                             const std::string& owner);
/// The value in `bytes`, a copy of its memory on some device: no copy, and no view for autograd.
at::Tensor value_in(const at::Tensor& bytes, const CrossingValue& value);

/// From now on the value, which nobody has made, takes part in autograd: its gradient comes to the edge
/// that is returned. The edge keeps no memory of the value, which a leaf's would.
torch::autograd::Edge arrive(const at::Tensor& value);
/// What backward begins from where the loss is in a later part: hands each of `leaving` its gradient, and
/// keeps none of them.
at::Tensor depart(const std::vector<at::Tensor>& leaving, std::vector<at::Tensor> gradients);
/// The functions of the backward that begins with the tensor's.
std::set<const torch::autograd::Node*> functions_behind(const at::Tensor& tensor);

}  // namespace pipewright

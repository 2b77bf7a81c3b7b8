// What a message between neighbouring stages consists of, and how several tensors of a device travel as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace pipewright {

class CudaPlugin;

/// Shape and dtype of one tensor of a message, and where it is to be received.
struct MessagePart {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;

  at::TensorOptions options() const { return at::TensorOptions().dtype(dtype).device(device); }
};

/// A tensor in the memory of `holder`, from a byte of it on, that shares nothing else with it: not, as a view
/// would, the count of changes that autograd looks at.
at::Tensor tensor_within(const at::Tensor& holder, int64_t offset_bytes, at::ScalarType dtype,
                         at::IntArrayRef shape);

/// How a tensor lies in memory: its dimensions, from that of the largest stride to that of the smallest, of
/// equal strides the first. One whose elements share memory or leave gaps (expanded, sliced) lies as its
/// clone() would. Kernels may sum in another order where a tensor lies otherwise, so this is a part of what
/// crosses between stages.
using MemoryOrder = std::vector<int64_t>;
MemoryOrder memory_order(const at::Tensor& tensor);
/// A contiguous tensor of the same sizes with the elements one after the other as they lie in `order`: the
/// same memory if `tensor` lies so without gaps, else a copy.
at::Tensor flattened(const at::Tensor& tensor, const MemoryOrder& order);
/// The tensor that became `flat`, which is contiguous, in the same memory; lies in `order`.
at::Tensor unflattened(const at::Tensor& flat, const MemoryOrder& order);

/// Makes one array of bytes of the tensors of a message, each at a multiple of 256 bytes: what is started
/// once a message (a send, a copy to the host) is then not started once a tensor.
class Packer {
 public:
  /// `plugin`: whose kernel copies, if it has one; null: LibTorch's operators do.
  explicit Packer(CudaPlugin* plugin = nullptr) : plugin_(plugin) {}

  /// Whether such a message is packed: it has several tensors, and all of them lie on a device.
  static bool packs(const std::vector<MessagePart>& parts);
  static bool packs(const std::vector<at::Tensor>& tensors);

  /// The array that `parts` become.
  static MessagePart array_of(const std::vector<MessagePart>& parts);
  /// A new array that holds contiguous `tensors`, in the order of the current stream.
  at::Tensor pack(const std::vector<at::Tensor>& tensors) const;
  /// The parts of an array, without a copy: each a tensor_within() it.
  static std::vector<at::Tensor> unpack(const at::Tensor& array, const std::vector<MessagePart>& parts);

 private:
  CudaPlugin* plugin_;
};

}  // namespace pipewright

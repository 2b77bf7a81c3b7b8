#include "runtime/transport/message.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "models/device/cuda_plugin.h"

namespace pipewright {
namespace {

// Every dtype, and LibTorch's vectorised kernels, are content with it.
constexpr int64_t kAlignmentBytes = 256;

std::vector<MessagePart> parts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<MessagePart> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    parts.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
  return parts;
}

int64_t padded_bytes(const MessagePart& part) {
  const int64_t bytes =
      c10::multiply_integers(part.shape) * static_cast<int64_t>(c10::elementSize(part.dtype));
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

bool is_contiguous(const MemoryOrder& order) { return std::is_sorted(order.begin(), order.end()); }

}  // namespace

MemoryOrder memory_order(const at::Tensor& tensor) {
  const std::vector<int64_t> strides = tensor.is_non_overlapping_and_dense()
                                           ? tensor.strides().vec()
                                           : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  MemoryOrder order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  const auto stride = [&](int64_t dimension) { return strides[static_cast<size_t>(dimension)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
  return order;
}

at::Tensor flattened(const at::Tensor& tensor, const MemoryOrder& order) {
  if (is_contiguous(order)) return tensor.contiguous();
  return tensor.permute(order).contiguous().view(tensor.sizes());
}

at::Tensor unflattened(const at::Tensor& flat, const MemoryOrder& order) {
  PW_CHECK_EQ(static_cast<int64_t>(order.size()), flat.dim());
  if (is_contiguous(order)) return flat;
  std::vector<int64_t> strides(order.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides.at(static_cast<size_t>(order[i])) = step;
    step *= std::max<int64_t>(1, flat.size(order[i]));
  }
  at::Tensor tensor = tensor_within(flat, 0, flat.scalar_type(), flat.sizes());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(flat.sizes(), strides);
  return tensor;
}

at::Tensor tensor_within(const at::Tensor& holder, int64_t offset_bytes, at::ScalarType dtype,
                         at::IntArrayRef shape) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t offset = holder.storage_offset() * holder.element_size() + offset_bytes;
  PW_CHECK_EQ(offset % element_bytes, 0);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(holder.storage()), holder.key_set(), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset / element_bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

bool Packer::packs(const std::vector<MessagePart>& parts) {
  return parts.size() > 1 && std::all_of(parts.begin(), parts.end(),
                                         [](const MessagePart& part) { return !part.device.is_cpu(); });
}

bool Packer::packs(const std::vector<at::Tensor>& tensors) { return packs(parts_of(tensors)); }

MessagePart Packer::array_of(const std::vector<MessagePart>& parts) {
  int64_t bytes = 0;
  for (const MessagePart& part : parts) bytes += padded_bytes(part);
  return {{bytes}, at::kByte, parts.at(0).device};
}

std::vector<at::Tensor> Packer::unpack(const at::Tensor& array, const std::vector<MessagePart>& parts) {
  std::vector<at::Tensor> tensors;
  int64_t offset = 0;
  for (const MessagePart& part : parts) {
    PW_CHECK_LE(offset + padded_bytes(part), static_cast<int64_t>(array.nbytes()));
    tensors.push_back(tensor_within(array, offset, part.dtype, part.shape));
    offset += padded_bytes(part);
  }
  PW_CHECK_EQ(offset, static_cast<int64_t>(array.nbytes()));
  return tensors;
}

at::Tensor Packer::pack(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  const std::vector<MessagePart> parts = parts_of(tensors);
  const MessagePart like = array_of(parts);
  at::Tensor array = at::empty(like.shape, like.options());
  const std::vector<at::Tensor> places = unpack(array, parts);
  if (plugin_ != nullptr && plugin_->has_kernels()) {
    plugin_->copy_all(tensors, places);
  } else {
    at::_foreach_copy_(places, tensors, /*non_blocking=*/true);
  }
  return array;
}

}  // namespace pipewright

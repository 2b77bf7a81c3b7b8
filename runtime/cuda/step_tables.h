// From lists of tensors to the tables of launches. No header of CUDA: tests do it with tensors of the host.
#pragma once

#include <vector>

#include "graph/error.h"
#include "models/device/cuda_plugin.h"
#include "runtime/cuda/step_chunks.h"

namespace pipewright {

/// Calls launch(table) for tables that together hold all `tensors`, in their order. S is their dtype. The
/// table has no place for finds yet; it is used again after the call.
template <typename S, typename Launch>
void for_each_step_table(const std::vector<StepTensor>& tensors, const Launch& launch) {
  const auto array = [](const at::Tensor& tensor, const StepTensor& all) -> S* {
    if (!tensor.defined()) return nullptr;
    PW_CHECK(tensor.is_contiguous() && tensor.numel() == all.old.numel() &&
                 tensor.device() == all.old.device() &&
                 tensor.scalar_type() == c10::CppTypeToScalarType<S>::value,
             "tensor " << all.index << " of a step: arrays of one size, dtype and device are expected");
    return tensor.data_ptr<S>();
  };
  const auto copy_of = [](const StepTensor& all) -> c10::BFloat16* {
    if (!all.copy.defined()) return nullptr;
    constexpr bool kFloats = std::is_same_v<S, float>;
    PW_CHECK(kFloats && all.copy.is_contiguous() && all.copy.numel() == all.old.numel() &&
                 all.copy.device() == all.old.device(),
             "tensor " << all.index << " of a step: a copy of floats, and of their size, is expected");
    return all.copy.data_ptr<c10::BFloat16>();
  };
  StepTable<S> table;
  const auto launch_and_clear = [&] {
    if (table.chunks.count() > 0) launch(table);
    table.chunks.tensors = 0;
  };
  for (const StepTensor& tensor : tensors) {
    if (!table.chunks.add(tensor.old.numel(), kChunkElements<S>)) {
      launch_and_clear();
      PW_CHECK(table.chunks.add(tensor.old.numel(), kChunkElements<S>), "a tensor of 2^31 chunks");
    }
    const auto i = static_cast<size_t>(table.chunks.tensors - 1);
    table.arrays[i] = {array(tensor.old, tensor), array(tensor.gradient, tensor), array(tensor.next, tensor),
                       array(tensor.first, tensor), array(tensor.second, tensor)};
    table.copies[i] = copy_of(tensor);
    table.index[i] = tensor.index;
    table.not_finite = nullptr;
    table.square_sums = nullptr;
  }
  launch_and_clear();
}

/// Likewise for copies.
template <typename Launch>
void for_each_copy_table(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to,
                         const Launch& launch) {
  PW_CHECK_EQ(from.size(), to.size());
  CopyTable table;
  const auto launch_and_clear = [&] {
    if (table.chunks.count() > 0) launch(table);
    table.chunks.tensors = 0;
  };
  for (size_t n = 0; n < from.size(); ++n) {
    PW_CHECK(from[n].is_contiguous() && to[n].is_contiguous() && from[n].nbytes() == to[n].nbytes() &&
                 from[n].device() == to[n].device(),
             "copy " << n << ": contiguous tensors of one device and size are expected");
    const auto bytes = static_cast<int64_t>(from[n].nbytes());
    if (!table.chunks.add(bytes, kChunkBytes)) {
      launch_and_clear();
      PW_CHECK(table.chunks.add(bytes, kChunkBytes), "a tensor of 2^31 chunks");
    }
    const auto i = static_cast<size_t>(table.chunks.tensors - 1);
    table.from[i] = static_cast<const unsigned char*>(from[n].data_ptr());
    table.to[i] = static_cast<unsigned char*>(to[n].data_ptr());
  }
  launch_and_clear();
}

/// Factors in what a dtype is computed in.
template <typename T>
SgdFactors<T> rounded(const SgdFactors<double>& f) {
  return {static_cast<T>(f.rate), static_cast<T>(f.momentum), static_cast<T>(f.weight_decay)};
}
template <typename T>
AdamFactors<T> rounded(const AdamFactors<double>& f) {
  return {static_cast<T>(f.weight_decay), static_cast<T>(f.first),       static_cast<T>(f.keep_second),
          static_cast<T>(f.second),       static_cast<T>(f.root_second), static_cast<T>(f.epsilon),
          static_cast<T>(f.rate),         static_cast<T>(f.ahead)};
}
template <typename T>
LionFactors<T> rounded(const LionFactors<double>& f) {
  return {static_cast<T>(f.keep_weight), static_cast<T>(f.keep_direction), static_cast<T>(f.direction),
          static_cast<T>(f.keep_first),  static_cast<T>(f.first),          static_cast<T>(f.rate)};
}

}  // namespace pipewright

#include "runtime/worker/prefix_records.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "graph/error.h"

namespace pipewright {

PrefixRecords::PrefixRecords(const std::vector<at::Tensor>& like, const std::string& dtype) {
  for (const at::Tensor& tensor : like) {
    Value value;
    value.shape = tensor.sizes().vec();
    value.strides =
        tensor.is_non_overlapping_and_dense() ? tensor.strides().vec() : tensor.contiguous().strides().vec();
    value.type = tensor.scalar_type();
    value.kept = value.type == at::kFloat && dtype == "bfloat16" ? at::kBFloat16 : value.type;
    value.device = tensor.device();
    value.row_bytes = static_cast<size_t>(tensor.numel() / tensor.size(0)) * at::elementSize(value.kept);
    record_bytes_ += value.row_bytes;
    values_.push_back(std::move(value));
  }
}

std::vector<std::byte> PrefixRecords::pack(const std::vector<at::Tensor>& values) const {
  PW_CHECK_EQ(values.size(), values_.size());
  const auto samples = static_cast<size_t>(values[0].size(0));
  std::vector<std::byte> records(samples * record_bytes_);
  size_t place = 0;
  for (size_t v = 0; v < values_.size(); ++v) {
    const at::Tensor rows = values[v].to(at::kCPU).to(values_[v].kept).contiguous();
    const auto* const from = static_cast<const std::byte*>(rows.const_data_ptr());
    for (size_t i = 0; i < samples; ++i) {
      std::memcpy(records.data() + i * record_bytes_ + place, from + i * values_[v].row_bytes,
                  values_[v].row_bytes);
    }
    place += values_[v].row_bytes;
  }
  return records;
}

std::vector<at::Tensor> PrefixRecords::unpack(std::span<const std::byte> records) const {
  std::vector<at::Tensor> result;
  size_t place = 0;
  for (const Value& value : values_) {
    const auto samples = static_cast<size_t>(value.shape[0]);
    PW_CHECK_EQ(records.size(), samples * record_bytes_);
    at::Tensor rows = at::empty(value.shape, at::TensorOptions(value.kept));
    auto* const into = static_cast<std::byte*>(rows.mutable_data_ptr());
    for (size_t i = 0; i < samples; ++i) {
      std::memcpy(into + i * value.row_bytes, records.data() + i * record_bytes_ + place, value.row_bytes);
    }
    place += value.row_bytes;
    if (rows.strides() != value.strides || value.kept != value.type || !value.device.is_cpu()) {
      at::Tensor laid_out =
          at::empty_strided(value.shape, value.strides, at::TensorOptions(value.type).device(value.device));
      rows = laid_out.copy_(rows);
    }
    result.push_back(std::move(rows));
  }
  return result;
}

}  // namespace pipewright

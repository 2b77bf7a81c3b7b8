#include "runtime/data/normalised.h"

#include <ATen/ops/tensor.h>

#include "graph/error.h"

namespace pipewright {
namespace {

constexpr float kLargestByte = 255;

}  // namespace

NormalisedBytes::NormalisedBytes(const Normalisation& by) : values_(by.mean.size()) {
  for (size_t channel = 0; channel < values_.size(); ++channel)
    for (size_t byte = 0; byte < values_[channel].size(); ++byte)
      values_[channel][byte] =
          (static_cast<float>(byte) / kLargestByte - by.mean[channel]) / by.deviation[channel];
}

void NormalisedBytes::write(const uint8_t* bytes, size_t count, float* into) const {
  const size_t of_channel = count / values_.size();
  for (const std::array<float, 256>& values : values_)
    for (size_t i = 0; i < of_channel; ++i) *into++ = values[*bytes++];
}

FieldsOnDevice::FieldsOnDevice(const Dataset& data, const std::vector<size_t>& fields, at::Device device)
    : device_(device) {
  for (const size_t number : fields) {
    const DataField& field = data.fields()[number];
    std::optional<Numbers>& numbers = numbers_.emplace_back();
    if (!field.normalisation) continue;
    std::vector<int64_t> shape(field.sample_type.shape.size(), 1);
    shape.at(0) = field.sample_type.shape[0];
    const auto by_channel = [&](const std::vector<float>& values) {
      return at::tensor(values).view(shape).to(device);
    };
    // Divided by a number, a GPU would multiply by its reciprocal: by tensors it divides, as the host does.
    numbers = {at::tensor({kLargestByte}).to(device), by_channel(field.normalisation->mean),
               by_channel(field.normalisation->deviation)};
  }
}

void FieldsOnDevice::make(std::vector<at::Tensor>& stored) const {
  PW_CHECK_EQ(stored.size(), numbers_.size());
  for (size_t i = 0; i < stored.size(); ++i) {
    if (!numbers_[i]) continue;
    const auto& [largest, mean, deviation] = *numbers_[i];
    stored[i] = stored[i].to(device_, /*non_blocking=*/true).div(largest).sub_(mean).div_(deviation);
  }
}

}  // namespace pipewright

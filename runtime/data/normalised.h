// Stored bytes made float32 (Normalisation, dataset.h): the same bits on the host and on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/data/dataset.h"

namespace pipewright {

/// On the host, sample by sample.
class NormalisedBytes {
 public:
  explicit NormalisedBytes(const Normalisation& by);
  /// `bytes` is a sample as it is stored, of `count` numbers; so many are written to `into`.
  void write(const uint8_t* bytes, size_t count, float* into) const;

 private:
  std::vector<std::array<float, 256>> values_;  // of each channel: as computed for each byte, and faster
};

/// On a device: fields of a data set from minibatches of them as they are stored.
class FieldsOnDevice {
 public:
  /// Those of these numbers. The host waits for a few numbers to be there.
  FieldsOnDevice(const Dataset& data, const std::vector<size_t>& fields, at::Device device);
  /// Makes fields of `stored`, one each, in what the calling thread's current stream is given: on the device
  /// those that are normalised, the others stay what and where they are. From pinned memory the host does not
  /// wait.
  void make(std::vector<at::Tensor>& stored) const;

 private:
  struct Numbers {
    at::Tensor largest, mean, deviation;
  };
  at::Device device_;
  std::vector<std::optional<Numbers>> numbers_;  // by field; none: it is stored as it is read
};

}  // namespace pipewright

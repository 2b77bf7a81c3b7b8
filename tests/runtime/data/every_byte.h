// Bytes that are made float32 on a device, against those of the host.
#pragma once

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "graph/random.h"
#include "runtime/data/loader.h"
#include "runtime/data/normalised.h"

namespace pipewright::testing {

inline bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.cpu().contiguous(), b = other.cpu().contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// One sample, all bytes in each channel.
class EveryByte : public Dataset {
 public:
  explicit EveryByte(const Normalisation& by)
      : fields_({{"x", {"float32", {static_cast<int64_t>(by.mean.size()), 16, 16}}, by}}) {}
  int64_t size() const override { return 1; }
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t classes() const override { return 1; }
  void read(int64_t, size_t, SampleKey, void* into) const override {
    for (int64_t i = 0; i < fields_[0].stored_type().bytes(); ++i)
      static_cast<uint8_t*>(into)[i] = static_cast<uint8_t>(i);
  }

 private:
  std::vector<DataField> fields_;
};

/// Of drawn means and deviations: what the formula says on the host, and the same bits on the device.
inline void check_every_byte(at::Device device) {
  KeyedRandom random{71};
  for (int round = 0; round < 300; ++round) {
    Normalisation by;
    for (size_t channel = 0, channels = 1 + random.below(4); channel < channels; ++channel) {
      by.mean.push_back(static_cast<float>(random.uniform()));
      by.deviation.push_back(static_cast<float>(0.01 + random.uniform()));
    }
    const EveryByte data(by);
    const auto loaded = [&](bool stored) {
      return Loader(data, {0}, std::vector<LoadRequest>{{{0}, {}}}, {.count = 0}, 0, /*pinned=*/false, stored)
          .next();
    };
    const std::vector<at::Tensor> host = loaded(false);
    for (size_t channel = 0; channel < by.mean.size(); ++channel)
      for (size_t byte = 0; byte < 256; ++byte)
        REQUIRE(host[0].const_data_ptr<float>()[256 * channel + byte] ==
                (static_cast<float>(byte) / 255 - by.mean[channel]) / by.deviation[channel]);
    std::vector<at::Tensor> there = loaded(true);
    REQUIRE(there[0].scalar_type() == at::kByte);
    FieldsOnDevice(data, {0}, device).make(there);
    REQUIRE(there[0].device() == device);
    REQUIRE(same_bits(host[0], there[0]));
  }
}

}  // namespace pipewright::testing

// Small files in the forms that image sets are published in.
#pragma once

#include "tests/runtime/data/helpers.h"

namespace pipewright::testing {

/// An IDX file: magic number, sizes, bytes.
inline std::string idx(uint32_t magic, const std::vector<uint32_t>& sizes, const std::string& data) {
  std::string bytes;
  const auto append = [&](uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  };
  append(magic);
  for (const uint32_t size : sizes) append(size);
  return bytes + data;
}

/// MNIST's four files with 5 training and 3 evaluation images; pixel p of image i is (p + 100 i) mod 256, its
/// label i.
inline void write_mnist(const std::filesystem::path& folder) {
  for (const auto& [prefix, count] : std::vector<std::pair<std::string, int>>{{"train", 5}, {"t10k", 3}}) {
    std::string labels, pixels;
    for (int i = 0; i < count; ++i) {
      labels += static_cast<char>(i);
      for (int p = 0; p < 784; ++p) pixels += static_cast<char>((p + 100 * i) % 256);
    }
    const auto samples = static_cast<uint32_t>(count);
    write_bytes(folder / (prefix + "-labels-idx1-ubyte"), idx(0x801, {samples}, labels));
    write_bytes(folder / (prefix + "-images-idx3-ubyte"), idx(0x803, {samples, 28, 28}, pixels));
  }
}

/// The byte of pixel p (of 3 x 32 x 32) of the images of write_cifar10().
inline int cifar10_pixel(int image, int p) { return (p * 7 + p / 1024 * 50 + 31 * image) % 256; }

inline std::string cifar10_record(int image, int label) {
  std::string bytes(1, static_cast<char>(label));
  for (int p = 0; p < 3072; ++p) bytes += static_cast<char>(cifar10_pixel(image, p));
  return bytes;
}

/// CIFAR-10's six binary files: data_batch_K.bin has K images, which makes 15, test_batch.bin 3. Images are
/// numbered through; the label of image i is i mod 10.
inline void write_cifar10(const std::filesystem::path& folder) {
  int image = 0;
  for (int batch = 1; batch <= 6; ++batch) {
    std::string bytes;
    for (int i = 0; i < (batch == 6 ? 3 : batch); ++i, ++image) bytes += cifar10_record(image, image % 10);
    write_bytes(folder / (batch == 6 ? "test_batch.bin" : "data_batch_" + std::to_string(batch) + ".bin"),
                bytes);
  }
}

}  // namespace pipewright::testing

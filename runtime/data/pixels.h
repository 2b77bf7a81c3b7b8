// Decoded images: bytes in rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pipewright {

/// In pixels.
struct Rectangle {
  int x, y, width, height;
};

/// Rows from the top, without gaps, of pixels from the left: grey, or red, green, blue. Empty after Pixels().
class Pixels {
 public:
  Pixels() = default;
  /// What the bytes are is left open.
  Pixels(int width, int height, int channels)
      : width_(width),
        height_(height),
        channels_(channels),
        bytes_(std::make_unique_for_overwrite<uint8_t[]>(size())) {}

  int width() const { return width_; }
  int height() const { return height_; }
  int channels() const { return channels_; }
  size_t row_bytes() const { return static_cast<size_t>(width_) * static_cast<size_t>(channels_); }
  size_t size() const { return row_bytes() * static_cast<size_t>(height_); }
  uint8_t* row(int y) { return bytes_.get() + row_bytes() * static_cast<size_t>(y); }
  const uint8_t* row(int y) const { return bytes_.get() + row_bytes() * static_cast<size_t>(y); }
  uint8_t* at(int x, int y) { return row(y) + static_cast<size_t>(x) * static_cast<size_t>(channels_); }
  const uint8_t* at(int x, int y) const {
    return row(y) + static_cast<size_t>(x) * static_cast<size_t>(channels_);
  }

 private:
  int width_ = 0, height_ = 0, channels_ = 0;
  std::unique_ptr<uint8_t[]> bytes_;
};

/// ITU-R 601, rounded, as a JPEG's own luminance; a grey pixel keeps its value.
inline uint8_t grey_of(int red, int green, int blue) {
  return static_cast<uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

}  // namespace pipewright

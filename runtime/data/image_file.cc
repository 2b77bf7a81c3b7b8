#include "runtime/data/image_file.h"

#include <cstdint>
#include <cstring>

namespace pipewright {
namespace {

uint8_t byte_at(const std::string& bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

int64_t number_at(const std::string& bytes, size_t at, size_t width) {  // big-endian
  int64_t number = 0;
  for (size_t i = 0; i < width; ++i) number = number << 8 | byte_at(bytes, at + i);
  return number;
}

bool is_jpeg(const std::string& bytes) { return bytes.compare(0, 3, "\xff\xd8\xff") == 0; }
bool is_png(const std::string& bytes) { return bytes.compare(0, 8, "\x89PNG\r\n\x1a\n") == 0; }

// A JPEG is a row of segments FF MM [length, 2 bytes big-endian, with itself]. After a start of scan (DA)
// come coded data, in which FF is followed by 00 or by a restart marker (D0..D7), up to the next segment. EOI
// (D9) is the end. Thumbnails with an EOI of their own lie inside segments, so searching for the bytes FF D9
// would not do. Calls visit(marker, its place) for each segment until that returns true; true if it did.
template <typename Visit>
bool find_segment(const std::string& bytes, const Visit& visit) {
  size_t at = 2;
  while (at + 1 < bytes.size()) {
    if (byte_at(bytes, at) != 0xff) {
      ++at;  // coded data, or padding between segments
      continue;
    }
    const uint8_t marker = byte_at(bytes, at + 1);
    if (marker == 0xff) {
      ++at;  // a fill byte
    } else if (marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd8)) {
      at += 2;
    } else {
      if (visit(marker, at)) return true;
      if (at + 3 >= bytes.size()) return false;
      at += 2 + static_cast<size_t>(number_at(bytes, at + 2, 2));
    }
  }
  return false;
}

bool jpeg_is_whole(const std::string& bytes) {
  return find_segment(bytes, [](uint8_t marker, size_t) { return marker == 0xd9; });
}

// A start of frame: FF C0..CF (but for C4, C8 and CC) [length] [bits] [height] [width].
std::optional<int64_t> jpeg_pixels(const std::string& bytes) {
  std::optional<int64_t> pixels;
  find_segment(bytes, [&](uint8_t marker, size_t at) {
    if (marker < 0xc0 || marker > 0xcf || marker == 0xc4 || marker == 0xc8 || marker == 0xcc) return false;
    if (at + 9 <= bytes.size()) pixels = number_at(bytes, at + 5, 2) * number_at(bytes, at + 7, 2);
    return true;
  });
  return pixels;
}

// A PNG is 8 bytes and a row of chunks: length (4 bytes, big-endian), kind, that many bytes, checksum. IEND
// is the last.
bool png_is_whole(const std::string& bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const auto length = static_cast<size_t>(number_at(bytes, at, 4));
    if (bytes.compare(at + 4, 4, "IEND") == 0) return true;
    at += 12 + length;
  }
  return false;
}

}  // namespace

std::optional<int64_t> image_pixels(const std::string& bytes) {
  if (is_jpeg(bytes)) return jpeg_pixels(bytes);
  // The first chunk has the sizes, 4 bytes each.
  if (!is_png(bytes) || bytes.size() < 24 || bytes.compare(12, 4, "IHDR") != 0) return std::nullopt;
  int64_t pixels = 0;
  if (__builtin_mul_overflow(number_at(bytes, 16, 4), number_at(bytes, 20, 4), &pixels)) return std::nullopt;
  return pixels;
}

std::string incomplete_image(const std::string& bytes) {
  if (bytes.empty()) return "the file is empty";
  if (is_jpeg(bytes)) return jpeg_is_whole(bytes) ? "" : "the JPEG is truncated";
  if (is_png(bytes)) return png_is_whole(bytes) ? "" : "the PNG is truncated";
  return "neither JPEG nor PNG";
}

}  // namespace pipewright

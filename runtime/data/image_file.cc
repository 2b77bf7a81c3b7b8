#include "runtime/data/image_file.h"

#include <cstdint>
#include <cstring>

namespace pipewright {
namespace {

uint8_t byte_at(const std::string& bytes, size_t at) { return static_cast<uint8_t>(bytes[at]); }

// A JPEG is a row of segments FF MM [length, 2 bytes big-endian, with itself]. After a start of scan (DA)
// come coded data, in which FF is followed by 00 or by a restart marker (D0..D7), up to the next segment. EOI
// (D9) is the end. Thumbnails with an EOI of their own lie inside segments, so searching for the bytes FF D9
// would not do.
bool jpeg_is_whole(const std::string& bytes) {
  size_t at = 2;
  while (at + 1 < bytes.size()) {
    if (byte_at(bytes, at) != 0xff) {
      ++at;  // coded data, or padding between segments
      continue;
    }
    const uint8_t marker = byte_at(bytes, at + 1);
    if (marker == 0xd9) return true;
    if (marker == 0xff) {
      ++at;  // a fill byte
    } else if (marker == 0 || marker == 1 || (marker >= 0xd0 && marker <= 0xd8)) {
      at += 2;
    } else {
      if (at + 3 >= bytes.size()) return false;
      at += 2 + (size_t{byte_at(bytes, at + 2)} << 8 | byte_at(bytes, at + 3));
    }
  }
  return false;
}

// A PNG is 8 bytes and a row of chunks: length (4 bytes, big-endian), kind, that many bytes, checksum. IEND
// is the last.
bool png_is_whole(const std::string& bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | byte_at(bytes, at + i);
    if (bytes.compare(at + 4, 4, "IEND") == 0) return true;
    at += 12 + length;
  }
  return false;
}

}  // namespace

std::string incomplete_image(const std::string& bytes) {
  if (bytes.empty()) return "the file is empty";
  if (bytes.compare(0, 3, "\xff\xd8\xff") == 0) return jpeg_is_whole(bytes) ? "" : "the JPEG is truncated";
  if (bytes.compare(0, 8, "\x89PNG\r\n\x1a\n") == 0) return png_is_whole(bytes) ? "" : "the PNG is truncated";
  return "neither JPEG nor PNG";
}

}  // namespace pipewright

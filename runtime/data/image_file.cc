#include "runtime/data/image_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

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
    if (byte_at(bytes, at) != 0xff) {  // coded data, or padding between segments
      at = std::min(bytes.find('\xff', at), bytes.size());
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

// EXIF is a TIFF file: II (little-endian) or MM, 42, where the first directory begins; a directory is a
// number of entries and these, 12 bytes each: tag, type, count, value. 0x0112 is the orientation, 2 bytes.
int exif_orientation(std::string_view tiff) {
  const bool little = tiff.substr(0, 4) == std::string_view("II*\0", 4);
  if (!little && tiff.substr(0, 4) != std::string_view("MM\0*", 4)) return 1;
  const auto number = [&](size_t at, size_t width) -> size_t {
    if (at + width > tiff.size()) return 0;
    size_t value = 0;
    for (size_t i = 0; i < width; ++i)
      value = value << 8 | static_cast<uint8_t>(tiff[little ? at + width - 1 - i : at + i]);
    return value;
  };
  const size_t directory = number(4, 4), entries = number(directory, 2);
  for (size_t i = 0, at = directory + 2; i < entries && at + 12 <= tiff.size(); ++i, at += 12) {
    if (number(at, 2) != 0x0112) continue;
    const size_t orientation = number(at + 8, 2);
    return 1 <= orientation && orientation <= 8 ? static_cast<int>(orientation) : 1;
  }
  return 1;
}

// A start of frame: FF C0..CF (but for C4, C8 and CC) [length] [bits] [height] [width]. EXIF: FF E1 [length]
// "Exif" 0 0.
std::optional<ImageHeader> jpeg_header(const std::string& bytes) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  std::optional<ImageHeader> header;
  int orientation = 0;
  find_segment(bytes, [&](uint8_t marker, size_t at) {
    if (marker == 0xe1 && orientation == 0 && bytes.compare(at + 4, kExif.size(), kExif) == 0) {
      const auto length = static_cast<size_t>(number_at(bytes, at + 2, 2));
      if (length > 2 + kExif.size())
        orientation = exif_orientation(
            std::string_view(bytes).substr(at + 4 + kExif.size(), length - 2 - kExif.size()));
    }
    if (marker < 0xc0 || marker > 0xcf || marker == 0xc4 || marker == 0xc8 || marker == 0xcc) return false;
    if (at + 9 <= bytes.size())
      header = {ImageKind::kJpeg, number_at(bytes, at + 7, 2), number_at(bytes, at + 5, 2),
                std::max(orientation, 1)};
    return true;
  });
  return header;
}

// A PNG is 8 bytes and a row of chunks: length (4 bytes, big-endian), kind, that many bytes, checksum. IEND
// is the last. Calls visit(kind, its bytes) for each chunk whose kind is there until that returns true; true
// if it did.
template <typename Visit>
bool find_chunk(const std::string& bytes, const Visit& visit) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const auto length = static_cast<size_t>(number_at(bytes, at, 4));
    const std::string_view all = bytes;
    if (visit(all.substr(at + 4, 4), all.substr(at + 8, length))) return true;
    at += 12 + length;
  }
  return false;
}

bool png_is_whole(const std::string& bytes) {
  return find_chunk(bytes, [](std::string_view kind, std::string_view) { return kind == "IEND"; });
}

// The first chunk has the sizes, 4 bytes each.
std::optional<ImageHeader> png_header(const std::string& bytes) {
  if (bytes.size() < 24 || bytes.compare(12, 4, "IHDR") != 0) return std::nullopt;
  ImageHeader header = {ImageKind::kPng, number_at(bytes, 16, 4), number_at(bytes, 20, 4), 1};
  find_chunk(bytes, [&](std::string_view kind, std::string_view content) {
    if (kind == "eXIf") header.orientation = exif_orientation(content);
    return kind == "eXIf" || kind == "IDAT";
  });
  return header;
}

// What files are called .jpg though they are something else.
const char* other_kind(const std::string& bytes) {
  const auto has = [&](size_t at, std::string_view text) {
    return bytes.size() > at && bytes.compare(at, text.size(), text) == 0;
  };
  if (has(0, "GIF8")) return "a GIF image, ";
  if (has(0, "RIFF") && has(8, "WEBP")) return "a WebP image, ";
  if (has(0, "BM")) return "a BMP image, ";
  if (has(0, {"II*\0", 4}) || has(0, {"MM\0*", 4})) return "a TIFF image, ";
  if (has(4, "ftypavif")) return "an AVIF image, ";
  if (has(4, "ftyphei")) return "a HEIF image, ";
  if (has(4, "jP  ")) return "a JPEG 2000 image, ";
  return "";
}

}  // namespace

std::optional<ImageHeader> image_header(const std::string& bytes) {
  const std::optional<ImageHeader> header = is_jpeg(bytes)  ? jpeg_header(bytes)
                                            : is_png(bytes) ? png_header(bytes)
                                                            : std::nullopt;
  // PNG's sides end at 2^31 - 1, JPEG's at 65535.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto sound = [](int64_t side) { return 1 <= side && side <= kMost; };
  return header && sound(header->width) && sound(header->height) ? header : std::nullopt;
}

std::string incomplete_image(const std::string& bytes) {
  if (bytes.empty()) return "the file is empty";
  if (is_jpeg(bytes)) return jpeg_is_whole(bytes) ? "" : "the JPEG is truncated";
  if (is_png(bytes)) return png_is_whole(bytes) ? "" : "the PNG is truncated";
  return other_kind(bytes) + std::string("neither JPEG nor PNG");
}

}  // namespace pipewright

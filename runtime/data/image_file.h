// What a JPEG or PNG says of itself. Decoders are lenient: they fill what a truncated file lacks with grey
// and say nothing; and a small file can be a very large image.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipewright {

enum class ImageKind { kJpeg, kPng };

struct ImageHeader {
  ImageKind kind;
  int64_t width, height;  ///< of the rows as they are stored; 1 to 2^31 - 1
  /// EXIF's: how to turn them. 1 to 8: 2, 4, 5 and 7 are mirrored too, from 5 on rows become columns.
  int orientation;
};

/// As the file says; nothing if it does not. Decodes nothing.
std::optional<ImageHeader> image_header(const std::string& bytes);

/// "" if `bytes` are a JPEG or PNG that ends where it should, else what is wrong: "the JPEG is truncated",
/// "a WebP image, neither JPEG nor PNG". Looks at the structure only; bytes after the end are allowed.
std::string incomplete_image(const std::string& bytes);

}  // namespace pipewright

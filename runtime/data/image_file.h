// What a JPEG or PNG says of itself. Decoders are lenient: they fill what a truncated file lacks with grey
// and say nothing; and a small file can be a very large image.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pipewright {

/// Width times height as the file's header says; nothing if it has none. Decodes nothing.
std::optional<int64_t> image_pixels(const std::string& bytes);

/// "" if `bytes` are a JPEG or PNG that ends where it should, else what is wrong: "the JPEG is truncated",
/// "neither JPEG nor PNG". Looks at the structure only; bytes after the end are allowed.
std::string incomplete_image(const std::string& bytes);

}  // namespace pipewright

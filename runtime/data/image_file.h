// Is an image file whole? Decoders are lenient: they fill what a truncated file lacks with grey and say
// nothing.
#pragma once

#include <string>

namespace pipewright {

/// "" if `bytes` are a JPEG or PNG that ends where it should, else what is wrong: "the JPEG is truncated",
/// "neither JPEG nor PNG". Looks at the structure only; bytes after the end are allowed.
std::string incomplete_image(const std::string& bytes);

}  // namespace pipewright

// PNG, by libpng.
#pragma once

#include <string>

#include "runtime/data/pixels.h"

namespace pipewright {

/// Decodes the image into 1 channel or 3: transparency is left out, of 16 bits the upper 8 stay, colours are
/// not corrected for a display. `width` and `height` are what the caller took it for. "" or what is wrong;
/// then *pixels is nothing.
std::string decode_png(const std::string& bytes, int width, int height, int channels, Pixels* pixels);

}  // namespace pipewright

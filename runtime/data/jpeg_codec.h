// JPEG, by libjpeg-turbo: its libjpeg interface, as that of TurboJPEG decodes no pieces before version 3.
#pragma once

#include <string>

#include "runtime/data/pixels.h"

namespace pipewright {

/// A JPEG's pixels are made of blocks of 8 x 8 coefficients; at a scale of 1, 2 or 4 eighths fewer of these
/// are turned into fewer pixels. The other eighths have no vector code and take longer than the whole.
inline constexpr int kJpegScales[] = {1, 2, 4, 8};

/// Decodes `piece` of the image at `eighths`, one of kJpegScales, into 1 channel or 3: the same bytes as the
/// whole image has there. The piece is in pixels of that scale, at which sides are `eighths` / 8 as long,
/// rounded up. `width` and `height` are what the caller took the whole image for at 8 eighths.
/// "" or what is wrong; then *pixels is nothing. Damage of coefficients is no error, nor is what lies below
/// the piece looked at.
std::string decode_jpeg(const std::string& bytes, int width, int height, const Rectangle& piece, int eighths,
                        int channels, Pixels* pixels);

/// Baseline, colours at half the resolution. `quality`: 1 to 100. Equal arguments give equal bytes.
std::string encode_jpeg(const Pixels& pixels, int quality);

}  // namespace pipewright

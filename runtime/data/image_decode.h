// Pieces of JPEG and PNG files, turned as they say, and no more of their pixels than is needed.
#pragma once

#include <string>

#include "runtime/data/image_file.h"
#include "runtime/data/pixels.h"

namespace pipewright {

/// The image's size as people see it: turned.
struct ImageSize {
  int width, height;
};
ImageSize size_of(const ImageHeader& header);

/// At how many eighths of its size a piece of a JPEG is decoded that will be made `side` x `side`: the fewest
/// of 1, 2, 4 and 8 at which the piece, its edges rounded to pixels (halves up), has at least `side` pixels
/// both ways; else 8. The piece is one of the rows as they are stored.
int eighths_for(const Rectangle& piece, int side);

/// Decodes the part of an image of which `piece` says where it lies in size_of(header), turned, with
/// `channels` 1 or 3, at eighths_for() of it if it is a JPEG. "" or what is wrong; then *pixels is nothing. A
/// pure function, safe to call from any thread.
std::string decode_image(const std::string& bytes, const ImageHeader& header, const Rectangle& piece,
                         int side, int channels, Pixels* pixels);

}  // namespace pipewright

#include "runtime/data/image_decode.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/data/jpeg_codec.h"
#include "runtime/data/png_codec.h"

namespace pipewright {
namespace {

// EXIF's orientations: how rows as they are stored become what is shown. First these are mirrored, then
// columns become rows.
struct Turn {
  bool mirrored, upside_down, transposed;

  explicit Turn(int orientation)
      : mirrored(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
        upside_down(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
        transposed(orientation >= 5) {}
};

// Where a shown piece lies in the rows as they are stored.
Rectangle stored_piece(const ImageHeader& header, const Turn& turn, const Rectangle& shown) {
  Rectangle piece = shown;
  if (turn.transposed) piece = {shown.y, shown.x, shown.height, shown.width};
  if (turn.mirrored) piece.x = static_cast<int>(header.width) - piece.x - piece.width;
  if (turn.upside_down) piece.y = static_cast<int>(header.height) - piece.y - piece.height;
  return piece;
}

Pixels turned(Pixels stored, const Turn& turn) {
  if (!turn.mirrored && !turn.upside_down && !turn.transposed) return stored;
  const int channels = stored.channels(), width = stored.width(), height = stored.height();
  Pixels shown(turn.transposed ? height : width, turn.transposed ? width : height, channels);
  for (int y = 0; y < shown.height(); ++y) {
    for (int x = 0; x < shown.width(); ++x) {
      const int column = turn.transposed ? y : x, row = turn.transposed ? x : y;
      std::memcpy(
          shown.at(x, y),
          stored.at(turn.mirrored ? width - 1 - column : column, turn.upside_down ? height - 1 - row : row),
          static_cast<size_t>(channels));
    }
  }
  return shown;
}

Rectangle scaled(const Rectangle& piece, int eighths) {
  const auto edge = [&](int at) { return static_cast<int>((int64_t{at} * eighths + 4) / 8); };
  const int x = edge(piece.x), y = edge(piece.y);
  return {x, y, edge(piece.x + piece.width) - x, edge(piece.y + piece.height) - y};
}

Pixels cut(Pixels image, const Rectangle& piece) {
  if (piece.width == image.width() && piece.height == image.height()) return image;
  Pixels result(piece.width, piece.height, image.channels());
  for (int y = 0; y < piece.height; ++y)
    std::memcpy(result.row(y), image.at(piece.x, piece.y + y), result.row_bytes());
  return result;
}

}  // namespace

ImageSize size_of(const ImageHeader& header) {
  const auto width = static_cast<int>(header.width), height = static_cast<int>(header.height);
  return header.orientation >= 5 ? ImageSize{height, width} : ImageSize{width, height};
}

int eighths_for(const Rectangle& piece, int side) {
  for (const int eighths : kJpegScales) {
    const Rectangle at = scaled(piece, eighths);
    if (at.width >= side && at.height >= side) return eighths;
  }
  return 8;
}

std::string decode_image(const std::string& bytes, const ImageHeader& header, const Rectangle& piece,
                         int side, int channels, Pixels* pixels) {
  const Turn turn(header.orientation);
  const Rectangle stored = stored_piece(header, turn, piece);
  const auto width = static_cast<int>(header.width), height = static_cast<int>(header.height);
  std::string problem;
  Pixels decoded;
  if (header.kind == ImageKind::kJpeg) {
    const int eighths = eighths_for(stored, side);
    problem = decode_jpeg(bytes, width, height, scaled(stored, eighths), eighths, channels, &decoded);
  } else {
    problem = decode_png(bytes, width, height, channels, &decoded);
    if (problem.empty()) decoded = cut(std::move(decoded), stored);
  }
  if (problem.empty()) *pixels = turned(std::move(decoded), turn);
  return problem;
}

}  // namespace pipewright

#include "runtime/data/png_codec.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

namespace pipewright {
namespace {

// As in jpeg_codec.cc: libpng is left by longjmp, so functions that call it have no objects with destructors.
class PngDecoder {
 public:
  explicit PngDecoder(const std::string& bytes) : at_(bytes.data()), left_(bytes.size()) {}
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  const char* error() const { return error_; }
  int width() const { return static_cast<int>(png_get_image_width(png_, info_)); }
  int height() const { return static_cast<int>(png_get_image_height(png_, info_)); }
  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  // Red, green and blue, 8 bits each, whatever the file has.
  bool begin() {
    if (setjmp(back_)) return false;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      std::snprintf(error_, sizeof(error_), "no memory");
      return false;
    }
    png_set_read_fn(png_, this, read);
    png_read_info(png_, info_);
    png_set_strip_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(back_)) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

 private:
  static void on_error(png_structp png, png_const_charp text) {
    auto& self = *static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::snprintf(self.error_, sizeof(self.error_), "%s", text);
    std::longjmp(self.back_, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep into, size_t count) {
    auto& self = *static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self.left_) png_error(png, "the file ends");
    std::memcpy(into, self.at_, count);
    self.at_ += count;
    self.left_ -= count;
  }

  const char* at_;
  size_t left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf back_;
  char error_[200] = "";
};

}  // namespace

std::string decode_png(const std::string& bytes, int width, int height, int channels, Pixels* pixels) {
  PngDecoder decoder(bytes);
  if (!decoder.begin()) return decoder.error();
  if (decoder.width() != width || decoder.height() != height) return "it says two sizes";
  Pixels decoded(width, height, 3);
  if (decoder.row_bytes() != decoded.row_bytes()) return "its pixels are of an unknown kind";
  std::vector<png_bytep> rows;
  for (int y = 0; y < height; ++y) rows.push_back(decoded.row(y));
  if (!decoder.read_rows(rows.data())) return decoder.error();
  if (channels == 3) {
    *pixels = std::move(decoded);
    return "";
  }
  *pixels = Pixels(width, height, 1);
  for (int y = 0; y < height; ++y) {
    uint8_t* into = pixels->row(y);
    const uint8_t* from = decoded.row(y);
    for (int x = 0; x < width; ++x, from += 3) into[x] = grey_of(from[0], from[1], from[2]);
  }
  return "";
}

}  // namespace pipewright

#include "runtime/data/jpeg_codec.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <cstdlib>
#include <cstring>
#include <vector>

// After what it needs.
#include <jpeglib.h>

#include "graph/error.h"

namespace pipewright {
namespace {

// A progressive JPEG comes in scans, each over the whole image; encoders make about ten. A small file can
// have thousands of empty ones, which would take minutes.
constexpr int kMostScans = 500;

// libjpeg is left by longjmp when it fails. So the functions that call it have no objects with destructors,
// and what has is owned by their callers.
struct JpegFailure : jpeg_error_mgr {
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(JpegFailure& failure) { std::longjmp(failure.back, 1); }

void on_error(j_common_ptr codec) {
  auto& failure = *static_cast<JpegFailure*>(codec->err);
  failure.format_message(codec, failure.text);
  leave(failure);
}

void on_message(j_common_ptr, int) {}

void on_progress(j_common_ptr codec) {
  if (!codec->is_decompressor) return;
  auto& failure = *static_cast<JpegFailure*>(codec->err);
  if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number <= kMostScans) return;
  std::snprintf(failure.text, sizeof(failure.text), "more than %d scans", kMostScans);
  leave(failure);
}

void catch_errors(JpegFailure& failure) {
  jpeg_std_error(&failure);
  failure.error_exit = on_error;
  failure.emit_message = on_message;
}

class JpegDecoder {
 public:
  JpegDecoder() { catch_errors(failure_); }
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  const char* error() const { return failure_.text; }
  int width() const { return static_cast<int>(jpeg_.image_width); }
  int height() const { return static_cast<int>(jpeg_.image_height); }
  bool is_cmyk() const { return jpeg_.out_color_space == JCS_CMYK; }
  // Of this marker the values are ink that is left out.
  bool is_adobe() const { return jpeg_.saw_Adobe_marker; }

  bool begin(const std::string& bytes, int eighths, int channels) {
    if (setjmp(failure_.back)) return false;
    jpeg_.err = &failure_;
    jpeg_create_decompress(&jpeg_);
    progress_.progress_monitor = on_progress;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&jpeg_, TRUE);
    jpeg_.scale_num = static_cast<unsigned>(eighths);
    jpeg_.scale_denom = 8;
    const bool cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = cmyk ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    return true;
  }

  // To the first row of the piece, in the columns that are needed for it: whole blocks, and one more at
  // either side, out of which colours of half the resolution are interpolated.
  bool start(const Rectangle& piece) {
    if (setjmp(failure_.back)) return false;
    jpeg_start_decompress(&jpeg_);
    const auto block = static_cast<JDIMENSION>(jpeg_.max_h_samp_factor * jpeg_.min_DCT_scaled_size);
    const auto x = static_cast<JDIMENSION>(piece.x), width = static_cast<JDIMENSION>(piece.width);
    const JDIMENSION begin = x - std::min(x, block), end = std::min(jpeg_.output_width, x + width + block);
    JDIMENSION columns = end - begin;
    if (columns < jpeg_.output_width && has_usual_sampling()) {
      first_column_ = begin;
      jpeg_crop_scanline(&jpeg_, &first_column_, &columns);
    }
    if (piece.y > 0) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(piece.y));
    return true;
  }

  size_t row_bytes() const {
    return static_cast<size_t>(jpeg_.output_width) * static_cast<size_t>(jpeg_.output_components);
  }
  // Of what read_row() gives, the piece's first pixel.
  size_t first_byte(const Rectangle& piece) const {
    return (static_cast<size_t>(piece.x) - first_column_) * static_cast<size_t>(jpeg_.output_components);
  }

  bool read_row(uint8_t* into) {
    if (setjmp(failure_.back)) return false;
    JSAMPROW row = into;
    jpeg_read_scanlines(&jpeg_, &row, 1);
    return true;
  }

 private:
  // Where colours have the full resolution or half of it. With others libjpeg-turbo 2.1 cuts columns wrongly.
  bool has_usual_sampling() const {
    for (int i = 0; i < jpeg_.num_components; ++i) {
      const jpeg_component_info& colour = jpeg_.comp_info[i];
      const int most = i == 0 ? 2 : 1;
      if (colour.h_samp_factor > most || colour.v_samp_factor > most) return false;
    }
    return true;
  }

  JpegFailure failure_ = {};
  jpeg_progress_mgr progress_ = {};
  jpeg_decompress_struct jpeg_ = {};
  JDIMENSION first_column_ = 0;
};

void from_cmyk(const uint8_t* from, bool ink_left_out, int width, int channels, uint8_t* into) {
  for (int i = 0; i < width; ++i, from += 4) {
    const auto left_out = [&](int ink) { return ink_left_out ? from[ink] : 255 - from[ink]; };
    const auto colour = [&](int ink) { return (left_out(ink) * left_out(3) + 127) / 255; };
    const int red = colour(0), green = colour(1), blue = colour(2);
    if (channels == 1) {
      *into++ = grey_of(red, green, blue);
    } else {
      for (const int value : {red, green, blue}) *into++ = static_cast<uint8_t>(value);
    }
  }
}

struct JpegEncoder {
  JpegFailure failure = {};
  jpeg_compress_struct jpeg = {};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;

  JpegEncoder() { catch_errors(failure); }
  ~JpegEncoder() {
    jpeg_destroy_compress(&jpeg);
    std::free(bytes);
  }
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;

  bool encode(const Pixels& pixels, int quality) {
    if (setjmp(failure.back)) return false;
    jpeg.err = &failure;
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &size);
    jpeg.image_width = static_cast<JDIMENSION>(pixels.width());
    jpeg.image_height = static_cast<JDIMENSION>(pixels.height());
    jpeg.input_components = pixels.channels();
    jpeg.in_color_space = pixels.channels() == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, quality, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < jpeg.image_height) {
      JSAMPROW row = const_cast<uint8_t*>(pixels.row(static_cast<int>(jpeg.next_scanline)));
      jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    return true;
  }
};

}  // namespace

std::string decode_jpeg(const std::string& bytes, int width, int height, const Rectangle& piece, int eighths,
                        int channels, Pixels* pixels) {
  JpegDecoder decoder;
  if (!decoder.begin(bytes, eighths, channels)) return decoder.error();
  if (decoder.width() != width || decoder.height() != height) return "it says two sizes";
  if (!decoder.start(piece)) return decoder.error();
  std::vector<uint8_t> row(decoder.row_bytes());
  const uint8_t* const first = row.data() + decoder.first_byte(piece);
  Pixels decoded(piece.width, piece.height, channels);
  for (int y = 0; y < piece.height; ++y) {
    if (!decoder.read_row(row.data())) return decoder.error();
    if (decoder.is_cmyk()) {
      from_cmyk(first, decoder.is_adobe(), piece.width, channels, decoded.row(y));
    } else {
      std::memcpy(decoded.row(y), first, decoded.row_bytes());
    }
  }
  *pixels = std::move(decoded);
  return "";
}

std::string encode_jpeg(const Pixels& pixels, int quality) {
  JpegEncoder encoder;
  PW_CHECK(encoder.encode(pixels, quality), encoder.failure.text);
  return {reinterpret_cast<const char*>(encoder.bytes), encoder.size};
}

}  // namespace pipewright

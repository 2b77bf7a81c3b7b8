// Image files for tests.
#pragma once

#include <png.h>

#include <catch2/catch.hpp>
#include <cstdio>  // jpeglib.h needs it
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

// After what it needs.
#include <jpeglib.h>

#include "runtime/data/pixels.h"

namespace pipewright::testing {

/// A picture with a horizontal ramp (red) and a vertical one (green) and an own shade (blue), so that crops
/// and flips can be told apart.
inline Pixels picture(int width, int height, int shade) {
  Pixels image(width, height, 3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at(x, y)[0] = static_cast<uint8_t>(x * 255 / width);
      image.at(x, y)[1] = static_cast<uint8_t>(y * 255 / height);
      image.at(x, y)[2] = static_cast<uint8_t>(shade);
    }
  }
  return image;
}

/// One colour all over.
inline Pixels plain(int width, int height, int red, int green, int blue) {
  Pixels image(width, height, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        image.at(x, y)[c] = static_cast<uint8_t>(c == 0 ? red : c == 1 ? green : blue);
  return image;
}

/// What a JPEG can be. `stored` are the colours in the file; `of` those of the pixels, of as many bytes.
struct JpegFile {
  int width, height;
  J_COLOR_SPACE of = JCS_RGB, stored = JCS_YCbCr;
  std::vector<std::pair<int, int>> sampling = {{2, 2}, {1, 1}, {1, 1}};  ///< of each colour: across, down
  bool progressive = false, arithmetic = false;
  int restart_rows = 0, quality = 95;
  std::string exif = "";
};

inline std::string encode_jpeg_file(const JpegFile& file, const uint8_t* pixels) {
  jpeg_compress_struct jpeg = {};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(file.width);
  jpeg.image_height = static_cast<JDIMENSION>(file.height);
  jpeg.in_color_space = file.of;
  jpeg.input_components = file.of == JCS_GRAYSCALE ? 1 : file.of == JCS_CMYK ? 4 : 3;
  jpeg_set_defaults(&jpeg);
  jpeg_set_colorspace(&jpeg, file.stored);
  jpeg_set_quality(&jpeg, file.quality, TRUE);
  for (size_t i = 0; i < static_cast<size_t>(jpeg.num_components); ++i) {
    jpeg.comp_info[i].h_samp_factor = i < file.sampling.size() ? file.sampling[i].first : 1;
    jpeg.comp_info[i].v_samp_factor = i < file.sampling.size() ? file.sampling[i].second : 1;
  }
  jpeg.restart_in_rows = file.restart_rows;
  jpeg.arith_code = file.arithmetic;
  if (file.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  if (!file.exif.empty()) {
    const std::string exif = std::string("Exif\0\0", 6) + file.exif;
    jpeg_write_marker(&jpeg, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(exif.data()),
                      static_cast<unsigned>(exif.size()));
  }
  for (int y = 0; y < file.height; ++y) {
    JSAMPROW row = const_cast<uint8_t*>(pixels) + y * file.width * jpeg.input_components;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string encoded(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&jpeg);
  std::free(bytes);
  return encoded;
}

/// What a PNG can be: `colours` is one of PNG_COLOR_TYPE_*, `rows` have its pixels as the file has them.
struct PngFile {
  int width, height, bits = 8, colours = PNG_COLOR_TYPE_RGB;
  bool interlaced = false;
  std::vector<png_color> palette = {};
  std::string exif = "";
};

inline std::string encode_png(const PngFile& file, const std::vector<std::vector<uint8_t>>& rows) {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp to, png_bytep from, size_t count) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<const char*>(from), count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(file.width), static_cast<png_uint_32>(file.height),
               file.bits, file.colours, file.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!file.palette.empty())
    png_set_PLTE(png, info, file.palette.data(), static_cast<int>(file.palette.size()));
  std::string exif = file.exif;
  if (!exif.empty())
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()),
                   reinterpret_cast<png_bytep>(exif.data()));
  std::vector<png_bytep> pointers;
  for (const auto& row : rows) pointers.push_back(const_cast<png_bytep>(row.data()));
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

inline std::string encode_png(const Pixels& image) {
  std::vector<std::vector<uint8_t>> rows;
  for (int y = 0; y < image.height(); ++y) rows.emplace_back(image.row(y), image.row(y) + image.row_bytes());
  return encode_png({.width = image.width(),
                     .height = image.height(),
                     .colours = image.channels() == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB},
                    rows);
}

/// JPEG, or PNG if the name says so.
inline void write_picture(const std::filesystem::path& file, const Pixels& image) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary)
      << (file.extension() == ".png"
              ? encode_png(image)
              : encode_jpeg_file({.width = image.width(), .height = image.height()}, image.row(0)));
}

/// Two classes, cats (3 files) and dogs (2), JPEG and PNG, in several sizes.
inline void write_pictures(const std::filesystem::path& root) {
  write_picture(root / "dogs" / "b.png", picture(50, 40, 200));
  write_picture(root / "dogs" / "a.JPG", picture(40, 64, 220));
  write_picture(root / "cats" / "3.jpeg", picture(48, 48, 60));
  write_picture(root / "cats" / "1.jpg", picture(64, 48, 20));
  write_picture(root / "cats" / "2.png", picture(20, 10, 40));
}

}  // namespace pipewright::testing

// Pieces of images against the whole image as libjpeg decodes it in one go, and against what was encoded.
#include "runtime/data/image_decode.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "graph/random.h"
#include "runtime/data/jpeg_codec.h"
#include "tests/runtime/data/pictures.h"

namespace pipewright {
namespace {

using testing::encode_jpeg_file;
using testing::encode_png;
using testing::JpegFile;
using testing::picture;
using testing::PngFile;

using Bytes = std::vector<uint8_t>;

Bytes bytes_of(const Pixels& pixels) { return {pixels.row(0), pixels.row(0) + pixels.size()}; }

int drawn(KeyedRandom& random, int least, int most) {
  return least + static_cast<int>(random.below(static_cast<uint64_t>(most - least + 1)));
}

// Neither smooth nor without edges: each pixel has a ramp's value, and every eighth is any.
Bytes noisy(KeyedRandom& random, int width, int height, int channels) {
  Bytes bytes;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        bytes.push_back(
            static_cast<uint8_t>(random.below(8) == 0 ? random.below(256) : (x * (c + 1) + y * 3) % 256));
  return bytes;
}

// The whole image, by the plainest calls of libjpeg.
Pixels whole_jpeg(const std::string& bytes, int eighths, int channels) {
  jpeg_decompress_struct jpeg = {};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.scale_num = static_cast<unsigned>(eighths);
  jpeg.scale_denom = 8;
  jpeg.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  Pixels all(static_cast<int>(jpeg.output_width), static_cast<int>(jpeg.output_height), channels);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = all.row(static_cast<int>(jpeg.output_scanline));
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return all;
}

Bytes cut(const Pixels& image, const Rectangle& piece) {
  Bytes bytes;
  for (int y = piece.y; y < piece.y + piece.height; ++y) {
    const uint8_t* first = image.at(piece.x, y);
    bytes.insert(bytes.end(), first, first + piece.width * image.channels());
  }
  return bytes;
}

Rectangle any_piece(KeyedRandom& random, int width, int height) {
  const int w = drawn(random, 1, width), h = drawn(random, 1, height);
  return {drawn(random, 0, width - w), drawn(random, 0, height - h), w, h};
}

TEST_CASE("a piece of a JPEG has the bytes that the whole image has there, at every scale") {
  KeyedRandom random{1};
  for (int i = 0; i < 600; ++i) {
    JpegFile file{.width = drawn(random, 1, 150), .height = drawn(random, 1, 150)};
    if (random.below(5) == 0) file.of = file.stored = JCS_GRAYSCALE;
    if (random.below(8) == 0) file.stored = file.of;
    // Usual ones, and such as few programs write: 4 across, one colour finer than the others, and so on.
    const std::vector<std::vector<std::pair<int, int>>> samplings = {
        {{1, 1}, {1, 1}, {1, 1}}, {{2, 1}, {1, 1}, {1, 1}}, {{2, 2}, {1, 1}, {1, 1}},
        {{1, 2}, {1, 1}, {1, 1}}, {{4, 1}, {1, 1}, {1, 1}}, {{4, 2}, {1, 1}, {1, 1}},
        {{2, 2}, {1, 2}, {1, 2}}, {{2, 2}, {2, 1}, {2, 1}}, {{1, 1}, {2, 2}, {1, 1}},
        {{1, 4}, {1, 1}, {1, 1}}, {{2, 2}, {2, 2}, {1, 1}}, {{2, 2}, {2, 1}, {1, 2}}};
    file.sampling = samplings[random.below(samplings.size())];
    file.progressive = random.below(3) == 0;
    file.arithmetic = random.below(5) == 0;
    file.restart_rows = random.below(3) == 0 ? 1 : 0;
    file.quality = drawn(random, 30, 100);
    const Bytes source = noisy(random, file.width, file.height, file.of == JCS_GRAYSCALE ? 1 : 3);
    const std::string bytes = encode_jpeg_file(file, source.data());
    for (const int eighths : kJpegScales) {
      const int channels = random.below(2) == 0 ? 1 : 3;
      const Pixels whole = whole_jpeg(bytes, eighths, channels);
      REQUIRE(whole.width() == (file.width * eighths + 7) / 8);
      REQUIRE(whole.height() == (file.height * eighths + 7) / 8);
      for (int j = 0; j < 5; ++j) {
        const Rectangle piece = any_piece(random, whole.width(), whole.height());
        INFO(file.width << " x " << file.height << ", sampling " << Catch::Detail::stringify(file.sampling)
                        << ", progressive " << file.progressive << ", restart " << file.restart_rows
                        << ", colours " << file.stored << ", " << channels << " channels; " << eighths
                        << "/8, piece " << piece.width << " x " << piece.height << " at " << piece.x << ", "
                        << piece.y);
        Pixels pixels;
        REQUIRE(decode_jpeg(bytes, file.width, file.height, piece, eighths, channels, &pixels) == "");
        REQUIRE(pixels.width() == piece.width);
        REQUIRE(pixels.height() == piece.height);
        REQUIRE(bytes_of(pixels) == cut(whole, piece));
      }
    }
  }
}

// Little-endian (II) or big-endian (MM): a directory of two entries, the second is the orientation.
std::string exif(int orientation, bool little) {
  const auto number = [&](uint32_t value, int width) {
    std::string bytes;
    for (int i = 0; i < width; ++i)
      bytes += static_cast<char>(value >> 8 * (little ? i : width - 1 - i) & 0xff);
    return bytes;
  };
  return (little ? "II" : "MM") + number(42, 2) + number(10, 4) + "??" + number(2, 2) + number(0x0100, 2) +
         number(3, 2) + number(1, 4) + number(7, 2) + number(0, 2) + number(0x0112, 2) + number(3, 2) +
         number(1, 4) + number(static_cast<uint32_t>(orientation), 2) + number(0, 2);
}

// EXIF's own words: which side of what is shown row 0 and column 0 of the file are.
Pixels shown(const Pixels& stored, int orientation) {
  constexpr const char* kRow0[] = {"top", "top", "bottom", "bottom", "left", "right", "right", "left"};
  constexpr const char* kColumn0[] = {"left", "right", "right", "left", "top", "top", "bottom", "bottom"};
  const bool turned = orientation >= 5;
  const int width = turned ? stored.height() : stored.width(),
            height = turned ? stored.width() : stored.height();
  Pixels result(width, height, stored.channels());
  for (int row = 0; row < stored.height(); ++row) {
    for (int column = 0; column < stored.width(); ++column) {
      int x = 0, y = 0;
      const auto place = [&](const std::string& side, int distance) {
        if (side == "left") x = distance;
        if (side == "right") x = width - 1 - distance;
        if (side == "top") y = distance;
        if (side == "bottom") y = height - 1 - distance;
      };
      place(kRow0[orientation - 1], row);
      place(kColumn0[orientation - 1], column);
      std::copy_n(stored.at(column, row), stored.channels(), result.at(x, y));
    }
  }
  return result;
}

std::string decode(const std::string& bytes, const Rectangle& piece, int side, int channels, Pixels* pixels) {
  if (const std::string problem = incomplete_image(bytes); !problem.empty()) return problem;
  const auto header = image_header(bytes);
  return header ? decode_image(bytes, *header, piece, side, channels, pixels) : "no header";
}

Pixels decoded(const std::string& bytes, int channels) {
  const auto header = image_header(bytes);
  REQUIRE(header);
  const ImageSize size = size_of(*header);
  Pixels pixels;
  // More than there are: nothing is scaled.
  REQUIRE(decode(bytes, {0, 0, size.width, size.height}, 5000, channels, &pixels) == "");
  return pixels;
}

TEST_CASE("images are turned as their EXIF orientation says, pieces of them too") {
  KeyedRandom random{2};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const bool little : {true, false}) {
      const int width = 37, height = 22;
      const Bytes source = noisy(random, width, height, 3);
      const std::string jpeg = encode_jpeg_file(
          {.width = width, .height = height, .exif = exif(orientation, little)}, source.data());
      std::vector<Bytes> rows;
      for (int y = 0; y < height; ++y)
        rows.emplace_back(source.begin() + y * width * 3, source.begin() + (y + 1) * width * 3);
      const std::string png =
          encode_png({.width = width, .height = height, .exif = exif(orientation, little)}, rows);
      for (const std::string& bytes : {jpeg, png}) {
        const auto header = image_header(bytes);
        REQUIRE(header);
        CHECK(header->orientation == orientation);
        Pixels stored = whole_jpeg(jpeg, 8, 3);
        if (bytes == png) std::copy(source.begin(), source.end(), stored.row(0));
        const Pixels expected = shown(stored, orientation);
        const Pixels got = decoded(bytes, 3);
        CHECK(got.width() == expected.width());
        REQUIRE(bytes_of(got) == bytes_of(expected));
        for (int i = 0; i < 20; ++i) {
          const Rectangle piece = any_piece(random, expected.width(), expected.height());
          Pixels part;
          REQUIRE(decode(bytes, piece, 5000, 3, &part) == "");
          REQUIRE(bytes_of(part) == cut(expected, piece));
        }
      }
    }
  }
  const Bytes source(300, 7);
  for (const std::string& broken : {exif(9, true), exif(0, false), exif(6, true).substr(0, 30),
                                    std::string("II*\0\xff\xff\xff\xff", 8), std::string("II")}) {
    const auto header =
        image_header(encode_jpeg_file({.width = 10, .height = 10, .exif = broken}, source.data()));
    REQUIRE(header);
    CHECK(header->orientation == 1);
  }
}

TEST_CASE("a piece of a JPEG is decoded at the fewest eighths that leave enough pixels") {
  CHECK(eighths_for({0, 0, 500, 375}, 224) == 8);
  CHECK(eighths_for({0, 0, 448, 448}, 224) == 4);
  CHECK(eighths_for({0, 0, 448, 447}, 224) == 4);  // 447 halves are 223.5, rounded up
  CHECK(eighths_for({0, 1, 448, 447}, 224) == 8);  // from 0.5 to 224: 1 to 224
  CHECK(eighths_for({0, 0, 447, 446}, 224) == 8);
  CHECK(eighths_for({0, 0, 4000, 3000}, 224) == 1);
  CHECK(eighths_for({0, 0, 1000, 900}, 224) == 2);
  CHECK(eighths_for({0, 0, 10, 10}, 224) == 8);
  KeyedRandom random{3};
  for (int i = 0; i < 300; ++i) {
    const int width = drawn(random, 1, 700), height = drawn(random, 1, 700), side = drawn(random, 1, 64);
    const Rectangle piece = any_piece(random, width, height);
    const Bytes source(static_cast<size_t>(width * height), 99);
    const std::string bytes = encode_jpeg_file(
        {.width = width, .height = height, .of = JCS_GRAYSCALE, .stored = JCS_GRAYSCALE}, source.data());
    Pixels pixels;
    REQUIRE(decode(bytes, piece, side, 1, &pixels) == "");
    CHECK(pixels.width() >= std::min(side, piece.width));
    CHECK(pixels.height() >= std::min(side, piece.height));
    const int fewer = eighths_for(piece, side) / 2;
    const auto edge = [&](int at) { return (at * fewer + 4) / 8; };
    CHECK((fewer == 0 || std::min(edge(piece.x + piece.width) - edge(piece.x),
                                  edge(piece.y + piece.height) - edge(piece.y)) < side));
    for (const uint8_t value : bytes_of(pixels)) REQUIRE(value == 99);
  }
}

TEST_CASE("colours of JPEGs: grey, RGB, CMYK and YCCK become what was meant") {
  const Pixels source = picture(40, 30, 90);
  const auto close = [](const Pixels& got, const Pixels& expected) {
    int most = 0;
    for (int y = 0; y < expected.height(); ++y)
      for (int x = 0; x < expected.width(); ++x)
        for (int c = 0; c < 3; ++c)
          most = std::max(most, std::abs(got.at(x, y)[c % got.channels()] - expected.at(x, y)[c]));
    return most;
  };
  Pixels grey(40, 30, 3);
  Bytes grey_bytes, ink;
  for (int y = 0; y < 30; ++y) {
    for (int x = 0; x < 40; ++x) {
      const uint8_t* p = source.at(x, y);
      grey_bytes.push_back(grey_of(p[0], p[1], p[2]));
      for (int c = 0; c < 3; ++c) grey.at(x, y)[c] = grey_bytes.back();
      // Adobe stores the ink that is left out: of black 255 none of it, so colours are what they are.
      for (const uint8_t value : {p[0], p[1], p[2], uint8_t{255}}) ink.push_back(value);
    }
  }
  const JpegFile file{.width = 40, .height = 30, .sampling = {{1, 1}, {1, 1}, {1, 1}}};
  JpegFile rgb = file, cmyk = file, ycck = file, only_grey = file;
  rgb.stored = JCS_RGB;
  cmyk.of = ycck.of = cmyk.stored = JCS_CMYK;
  ycck.stored = JCS_YCCK;
  only_grey.of = only_grey.stored = JCS_GRAYSCALE;
  for (const auto& [settings, pixels] :
       {std::pair{file, source.row(0)}, {rgb, source.row(0)}, {cmyk, ink.data()}, {ycck, ink.data()}}) {
    const std::string bytes = encode_jpeg_file(settings, pixels);
    INFO("stored as " << settings.stored);
    CHECK(close(decoded(bytes, 3), source) <= 8);
    CHECK(close(decoded(bytes, 1), grey) <= 8);
  }
  const std::string bytes = encode_jpeg_file(only_grey, grey_bytes.data());
  CHECK(close(decoded(bytes, 3), grey) <= 8);
  CHECK(close(decoded(bytes, 1), grey) <= 8);

  // Without Adobe's marker (its 14 bytes begin with FF EE) values are the ink itself.
  std::string plain = encode_jpeg_file(cmyk, ink.data());
  const size_t marker = plain.find("\xff\xee");
  REQUIRE(marker != std::string::npos);
  plain.erase(marker, 16);
  const Pixels dark = decoded(plain, 3);
  CHECK(close(dark, testing::plain(40, 30, 0, 0, 0)) <= 8);  // all of black
}

TEST_CASE("kinds of PNGs: bits, palettes, transparency, interlacing") {
  KeyedRandom random{4};
  struct Kind {
    int colours, samples;
    std::vector<int> bits;
  };
  const std::vector<Kind> kinds = {{PNG_COLOR_TYPE_GRAY, 1, {1, 2, 4, 8, 16}},
                                   {PNG_COLOR_TYPE_PALETTE, 1, {1, 2, 4, 8}},
                                   {PNG_COLOR_TYPE_GRAY_ALPHA, 2, {8, 16}},
                                   {PNG_COLOR_TYPE_RGB, 3, {8, 16}},
                                   {PNG_COLOR_TYPE_RGB_ALPHA, 4, {8, 16}}};
  for (const Kind& kind : kinds) {
    for (const int bits : kind.bits) {
      for (const bool interlaced : {false, true}) {
        const int width = drawn(random, 1, 40), height = drawn(random, 1, 40);
        PngFile file{.width = width,
                     .height = height,
                     .bits = bits,
                     .colours = kind.colours,
                     .interlaced = interlaced};
        const int most = (1 << std::min(bits, 8)) - 1;
        if (kind.colours == PNG_COLOR_TYPE_PALETTE)
          for (int i = 0; i <= most; ++i)
            file.palette.push_back({static_cast<uint8_t>(i), static_cast<uint8_t>(255 - i), 7});
        std::vector<Bytes> rows;
        Bytes expected;  // red, green, blue
        for (int y = 0; y < height; ++y) {
          Bytes row;
          int filled = 8;  // bits of the row's last byte
          for (int x = 0; x < width; ++x) {
            Bytes samples;
            for (int c = 0; c < kind.samples; ++c) {
              const auto value = static_cast<uint8_t>(drawn(random, 0, most));
              samples.push_back(static_cast<uint8_t>(value * 255 / most));
              if (bits >= 8) {
                row.push_back(value);
                if (bits == 16) row.push_back(static_cast<uint8_t>(drawn(random, 0, 255)));
              } else {
                if (filled == 8) row.push_back(0), filled = 0;
                filled += bits;
                row.back() = static_cast<uint8_t>(row.back() | value << (8 - filled));
                if (kind.colours == PNG_COLOR_TYPE_PALETTE) samples.back() = value;
              }
            }
            for (size_t c = 0; c < 3; ++c) {
              if (kind.colours == PNG_COLOR_TYPE_PALETTE) {
                const png_color& colour = file.palette[samples[0]];
                expected.push_back(c == 0 ? colour.red : c == 1 ? colour.green : colour.blue);
              } else {
                expected.push_back(samples[kind.samples >= 3 ? c : 0]);
              }
            }
          }
          rows.push_back(row);
        }
        INFO("colours " << kind.colours << ", " << bits << " bits, interlaced " << interlaced);
        const std::string bytes = encode_png(file, rows);
        REQUIRE(bytes_of(decoded(bytes, 3)) == expected);
        Bytes grey;
        for (size_t i = 0; i < expected.size(); i += 3)
          grey.push_back(grey_of(expected[i], expected[i + 1], expected[i + 2]));
        REQUIRE(bytes_of(decoded(bytes, 1)) == grey);
      }
    }
  }
}

TEST_CASE("damaged images are decoded or refused with a reason, and the same by every thread") {
  KeyedRandom random{5};
  std::vector<std::string> files;
  const Bytes source = noisy(random, 60, 44, 4);
  for (const bool progressive : {false, true}) {
    files.push_back(encode_jpeg_file({.width = 60, .height = 44, .progressive = progressive}, source.data()));
    files.push_back(encode_jpeg_file({.width = 60,
                                      .height = 44,
                                      .of = JCS_CMYK,
                                      .stored = JCS_YCCK,
                                      .progressive = progressive,
                                      .exif = exif(6, progressive)},
                                     source.data()));
    std::vector<Bytes> rows;
    for (int y = 0; y < 44; ++y) rows.emplace_back(source.begin() + y * 240, source.begin() + (y + 1) * 240);
    files.push_back(encode_png({.width = 60,
                                .height = 44,
                                .colours = PNG_COLOR_TYPE_RGB_ALPHA,
                                .interlaced = progressive,
                                .exif = exif(3, true)},
                               rows));
  }
  int refused = 0, passed = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string bytes = files[random.below(files.size())];
    for (int j = drawn(random, 1, 4); j > 0; --j) {
      // Half of the damage where headers are.
      const size_t at =
          random.below(random.below(2) == 0 ? std::min<size_t>(bytes.size(), 200) : bytes.size());
      if (random.below(4) == 0) {
        bytes.erase(at, random.below(40));
      } else {
        bytes[at] = static_cast<char>(random.below(256));
      }
    }
    const auto header = image_header(bytes);
    if (!header || header->width * header->height > 1'000'000) continue;
    const ImageSize size = size_of(*header);
    const Rectangle piece = any_piece(random, size.width, size.height);
    const int side = drawn(random, 1, 30), channels = random.below(2) == 0 ? 1 : 3;
    Pixels pixels;
    const std::string problem = decode(bytes, piece, side, channels, &pixels);
    problem.empty() ? ++passed : ++refused;
    REQUIRE(problem.empty() == (pixels.size() > 0));
    if (i % 50 != 0) continue;
    std::vector<Pixels> again(3);
    std::vector<std::string> problems(3);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] { problems[t] = decode(bytes, piece, side, channels, &again[t]); });
    for (std::thread& thread : threads) thread.join();
    for (size_t t = 0; t < 3; ++t) {
      CHECK(problems[t] == problem);
      if (problem.empty()) CHECK(bytes_of(again[t]) == bytes_of(pixels));
    }
  }
  CHECK(refused > 1000);
  CHECK(passed > 1000);
}

TEST_CASE("what is wrong with an image is said") {
  const Pixels source = picture(32, 24, 5);
  Pixels pixels;
  const auto problem = [&](const std::string& bytes) { return decode(bytes, {0, 0, 8, 8}, 8, 3, &pixels); };
  const std::string progressive =
      encode_jpeg_file({.width = 32, .height = 24, .progressive = true}, source.row(0));
  // The last scan, again and again.
  const size_t scan = progressive.rfind("\xff\xda");
  std::string scans = progressive.substr(0, progressive.size() - 2);
  for (int i = 0; i < 600; ++i) scans += progressive.substr(scan, progressive.size() - 2 - scan);
  CHECK(problem(scans + "\xff\xd9") == "more than 500 scans");
  std::string png = encode_png(source);
  png[png.find("IDAT") + 12] ^= 1;
  CHECK_THAT(problem(png), Catch::StartsWith("IDAT: "));
  const std::string jpeg = encode_jpeg_file({.width = 32, .height = 24}, source.row(0));
  std::string table = jpeg;
  table[table.find("\xff\xc4") + 5] = '\xff';
  CHECK(problem(table) == "Bogus Huffman table definition");
  CHECK(incomplete_image(std::string("RIFF\x10\0\0\0WEBPVP8 ", 16)) == "a WebP image, neither JPEG nor PNG");
  CHECK(incomplete_image("GIF89a") == "a GIF image, neither JPEG nor PNG");
  CHECK(incomplete_image(std::string("II*\0\x08", 5)) == "a TIFF image, neither JPEG nor PNG");
  CHECK(incomplete_image("<html>") == "neither JPEG nor PNG");
}

}  // namespace
}  // namespace pipewright

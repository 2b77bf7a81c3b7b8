#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "graph/json.h"
#include "runtime/data/image_file.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/pictures.h"

namespace pipewright {
namespace {

using testing::encode_png;
using testing::message_of;
using testing::picture;
using testing::plain;
using testing::read_field;
using testing::read_label;
using testing::TemporaryFolder;
using testing::write_bytes;
using testing::write_picture;
using testing::write_pictures;

std::unique_ptr<Dataset> open(const std::filesystem::path& root, const std::string& options = "",
                              const std::string& split = "train") {
  return open_dataset("image-folder:root=" + root.string() + options, split);
}

std::string open_error(const std::filesystem::path& root, const std::string& split = "train") {
  return message_of<InputError>([&] { open(root, "", split); });
}

void truncate_file(const std::filesystem::path& file, size_t bytes) {
  write_bytes(file, read_file(file).substr(0, bytes));
}

constexpr float kRedMean = 0.485F, kRedDeviation = 0.229F, kGreenMean = 0.456F, kGreenDeviation = 0.224F,
                kBlueMean = 0.406F, kBlueDeviation = 0.225F;

TEST_CASE("image-folder: classes and files are sorted by name, labels are positions of classes") {
  const TemporaryFolder folder;
  write_pictures(folder.path());
  const auto set = open(folder.path(), ",image=16");
  REQUIRE(set->size() == 5);
  CHECK(set->classes() == 2);
  const std::vector<int64_t> expected = {0, 0, 0, 1, 1};
  const std::vector<int> shades = {20, 40, 60, 220, 200};
  for (int64_t i = 0; i < 5; ++i) {
    CHECK(read_label(*set, i) == expected[static_cast<size_t>(i)]);
    // Blue, the last channel, is the picture's own shade all over.
    const std::vector<float> image = read_field<float>(*set, i, 0);
    const float blue =
        (static_cast<float>(shades[static_cast<size_t>(i)]) / 255 - kBlueMean) / kBlueDeviation;
    CHECK(image[2 * 256 + 100] == Approx(blue).margin(0.15));
  }
  CHECK(set->remarks().empty());
}

TEST_CASE("image-folder: evaluation takes the centre, exactly where nothing is resized") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", picture(48, 32, 77));
  const auto set = open(folder.path(), ",image=28,resize=32", "evaluation");
  const std::vector<float> image = read_field<float>(*set, 0, 0);
  const Pixels source = picture(48, 32, 77);
  for (int y = 0; y < 28; ++y) {
    for (int x = 0; x < 28; ++x) {
      const uint8_t* pixel = source.at(x + 10, y + 2);
      const auto at = static_cast<size_t>(y * 28 + x);
      REQUIRE(image[at] == Approx((pixel[0] / 255.0 - kRedMean) / kRedDeviation).margin(1e-5));
      REQUIRE(image[784 + at] == Approx((pixel[1] / 255.0 - kGreenMean) / kGreenDeviation).margin(1e-5));
      REQUIRE(image[2 * 784 + at] == Approx((pixel[2] / 255.0 - kBlueMean) / kBlueDeviation).margin(1e-5));
    }
  }
  const SampleKey other{9, 9};
  CHECK(read_field<float>(*set, 0, 0, other) == image);
}

TEST_CASE("image-folder: one channel is grey") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", plain(20, 20, 128, 128, 128));
  const auto set = open(folder.path(), ",image=16,channels=1");
  CHECK(set->fields()[0].sample_type.shape == std::vector<int64_t>{1, 16, 16});
  for (const float value : read_field<float>(*set, 0, 0)) {
    REQUIRE(value == Approx((128 / 255.0 - 0.449) / 0.226).margin(1e-5));
  }
}

TEST_CASE("image-folder: augmentation is a function of (seed, epoch, index) and varies with each") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", picture(64, 64, 1));
  write_picture(folder.path() / "only" / "2.png", picture(64, 64, 1));
  for (const std::string options : {",crop=resized", ",crop=padded"}) {
    const auto set = open(folder.path(), options + ",image=32"),
               again = open(folder.path(), options + ",image=32");
    std::set<std::vector<float>> distinct;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        for (int64_t i = 0; i < 2; ++i) {
          const std::vector<float> image = read_field<float>(*set, i, 0, {seed, epoch});
          CHECK(image == read_field<float>(*again, i, 0, {seed, epoch}));
          distinct.insert(image);
        }
      }
    }
    CHECK(distinct.size() >= 17);  // 18 unless two of 162 padded crops fall together
  }
}

TEST_CASE("image-folder: half of the visits are flipped, none with flip=no") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", picture(32, 32, 1));
  for (const bool flip : {true, false}) {
    const auto set =
        open(folder.path(), std::string(",image=32,resize=32,crop=centre,flip=") + (flip ? "yes" : "no"));
    int flipped = 0;
    for (int64_t epoch = 0; epoch < 200; ++epoch) {
      const std::vector<float> image = read_field<float>(*set, 0, 0, {0, epoch});
      flipped += image[0] > image[31];  // red grows from left to right in the file
    }
    CHECK(std::abs(flipped - (flip ? 100 : 0)) < (flip ? 40 : 1));
  }
}

TEST_CASE("image-folder: random resized crops cover parts of the image, padded crops move it") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", picture(64, 64, 1));
  const auto resized = open(folder.path(), ",image=32,flip=no"),
             padded = open(folder.path(), ",image=32,crop=padded,flip=no");
  const float black = (0 - kBlueMean) / kBlueDeviation;
  double least = 10, most = 0;
  bool moved = false, centred = false;
  for (int64_t epoch = 0; epoch < 300; ++epoch) {
    const std::vector<float> crop = read_field<float>(*resized, 0, 0, {0, epoch});
    const double span = (crop[31] - crop[0]) * kRedDeviation;  // the part of the width that is seen
    least = std::min(least, span), most = std::max(most, span);
    const std::vector<float> shifted = read_field<float>(*padded, 0, 0, {0, epoch});
    (shifted[2 * 1024] == black ? moved : centred) = true;
  }
  CHECK(least < 0.5);
  CHECK(least > 0.15);
  CHECK(most > 0.85);
  CHECK(moved);
  CHECK(centred);
}

TEST_CASE("image-folder: images of odd proportions and sizes") {
  const TemporaryFolder folder;
  write_picture(folder.path() / "only" / "1.png", picture(1, 1, 1));
  write_picture(folder.path() / "only" / "2.png", picture(3000, 1, 1));
  write_picture(folder.path() / "only" / "3.png", picture(1, 3000, 1));
  write_bytes(folder.path() / "only" / "4.png",
              encode_png({.width = 7, .height = 5, .bits = 16, .colours = PNG_COLOR_TYPE_RGB_ALPHA},
                         std::vector(5, std::vector<uint8_t>(7 * 8, 12))));
  for (const std::string crop : {"resized", "padded", "centre"}) {
    for (const char* split : {"train", "evaluation"}) {
      const auto set = open(folder.path(), ",image=20,crop=" + crop, split);
      for (int64_t i = 0; i < set->size(); ++i) {
        for (int64_t epoch = 0; epoch < 5; ++epoch) {
          for (const float value : read_field<float>(*set, i, 0, {3, epoch})) REQUIRE(std::abs(value) < 3);
        }
      }
    }
  }
}

TEST_CASE("image-folder: a corrupt image is named, or replaced by the next of its class") {
  const TemporaryFolder folder;
  write_pictures(folder.path());
  const std::filesystem::path cats = folder.path() / "cats";
  const std::filesystem::path broken = cats / GENERATE("1.jpg", "2.png", "3.jpeg");
  const int64_t index = broken.filename() == "1.jpg" ? 0 : broken.filename() == "2.png" ? 1 : 2;
  const size_t size = std::filesystem::file_size(broken);
  SECTION("cut in the middle") { truncate_file(broken, size / 2); }
  SECTION("cut by its last bytes") { truncate_file(broken, size - (broken.extension() == ".png" ? 12 : 2)); }
  SECTION("cut to its first bytes") { truncate_file(broken, 5); }
  SECTION("empty") { truncate_file(broken, 0); }
  SECTION("not an image") { write_bytes(broken, "<html>404</html>"); }
  SECTION("a link to nowhere") {
    std::filesystem::remove(broken);
    std::filesystem::create_symlink("nowhere", broken);
  }
  SECTION("a pipe, to which nobody writes") {
    std::filesystem::remove(broken);
    REQUIRE(::mkfifo(broken.c_str(), 0600) == 0);
  }
  SECTION("a device without an end") {
    std::filesystem::remove(broken);
    std::filesystem::create_symlink("/dev/zero", broken);
  }

  const auto strict = open(folder.path(), ",image=16");
  CHECK_THAT(message_of<RunError>([&] { read_field<float>(*strict, index, 0); }),
             Catch::Contains(broken.string()) && Catch::Contains("corrupt=skip"));
  CHECK(read_label(*strict, index) == 0);
  CHECK_NOTHROW(read_field<float>(*strict, (index + 1) % 3, 0));

  const auto lenient = open(folder.path(), ",image=16,corrupt=skip,crop=centre,flip=no");
  CHECK(lenient->remarks().empty());
  CHECK(read_field<float>(*lenient, index, 0) == read_field<float>(*lenient, (index + 1) % 3, 0));
  CHECK(read_label(*lenient, index) == 0);
  read_field<float>(*lenient, index, 0);
  REQUIRE(lenient->remarks().size() == 1);
  CHECK(lenient->remarks()[0] == "1 corrupt image replaced: " + broken.string());
}

TEST_CASE("image-folder: an image of too many pixels is not decoded") {
  const TemporaryFolder folder;
  write_pictures(folder.path());
  const std::filesystem::path large = folder.path() / "cats" / GENERATE("1.jpg", "2.png");
  SECTION("as its header says, whatever else is in the file") {
    std::string bytes = read_file(large);  // 30000 x 30000
    size_t at = 16;
    if (large.extension() == ".jpg") at = bytes.find("\xff\xc0") + 5;
    REQUIRE(at < bytes.size());
    bytes.replace(at, large.extension() == ".jpg" ? 4 : 8,
                  large.extension() == ".jpg" ? std::string("\x75\x30\x75\x30", 4)
                                              : std::string("\0\0\x75\x30\0\0\x75\x30", 8));
    write_bytes(large, bytes);
    const auto set = open(folder.path(), ",image=16");
    const int64_t index = large.extension() == ".jpg" ? 0 : 1;
    CHECK_THAT(message_of<RunError>([&] { read_field<float>(*set, index, 0); }),
               Catch::Contains(large.string() + ": has 900000000 pixels, more than max_pixels=128000000"));
    const auto lenient = open(folder.path(), ",image=16,corrupt=skip,crop=centre,flip=no");
    CHECK(read_field<float>(*lenient, index, 0) == read_field<float>(*lenient, index + 1, 0));
  }
  SECTION("the limit is the last number that passes") {
    for (const auto& [most, index, passes] :
         {std::tuple{3072, 0, true}, {3071, 0, false}, {200, 1, true}, {199, 1, false}}) {
      const auto set = open(folder.path(), ",image=16,max_pixels=" + std::to_string(most));
      if (passes) {
        CHECK_NOTHROW(read_field<float>(*set, index, 0));
      } else {
        CHECK_THROWS_AS(read_field<float>(*set, index, 0), RunError);
      }
    }
  }
}

TEST_CASE("image-folder: a class without any readable image is an error, also with corrupt=skip") {
  const TemporaryFolder folder;
  write_pictures(folder.path());
  truncate_file(folder.path() / "dogs" / "a.JPG", 30);
  truncate_file(folder.path() / "dogs" / "b.png", 30);
  const auto set = open(folder.path(), ",image=16,corrupt=skip");
  CHECK_THAT(message_of<RunError>([&] { read_field<float>(*set, 3, 0); }),
             Catch::Contains("class 'dogs': none of its 2 images can be decoded"));
  CHECK_NOTHROW(read_field<float>(*set, 0, 0));
}

TEST_CASE("image-folder: splits") {
  const TemporaryFolder folder;
  const std::string evaluation = GENERATE("evaluation", "val");
  write_pictures(folder.path() / "train");
  write_picture(folder.path() / evaluation / "dogs" / "x.png", picture(20, 20, 3));
  SECTION("labels are positions among the training classes; an absent class is a remark") {
    const auto set = open(folder.path(), ",image=16", "evaluation");
    REQUIRE(set->size() == 1);
    CHECK(set->classes() == 2);
    CHECK(read_label(*set, 0) == 1);
    REQUIRE(set->remarks().size() == 1);
    CHECK_THAT(set->remarks()[0], Catch::Contains("cats"));
    CHECK(open(folder.path())->size() == 5);
  }
  SECTION("a class that is not one of training") {
    write_picture(folder.path() / evaluation / "dog" / "x.png", picture(20, 20, 3));
    CHECK_THAT(open_error(folder.path(), "evaluation"), Catch::Contains("did you mean 'dogs'?"));
  }
  SECTION("train without evaluation") {
    std::filesystem::remove_all(folder.path() / evaluation);
    CHECK_THAT(open_error(folder.path()), Catch::Contains("has train/ but neither evaluation/ nor val/"));
  }
  SECTION("evaluation without train") {
    std::filesystem::remove_all(folder.path() / "train");
    CHECK_THAT(open_error(folder.path()), Catch::Contains("but no train/"));
  }
}

TEST_CASE("image-folder: layouts that cannot be used are said before training") {
  const TemporaryFolder folder;
  CHECK_THAT(open_error(folder.path()), Catch::Contains("has no class folders"));
  CHECK_THAT(open_error(folder.path() / "nowhere"), Catch::Contains("expected a folder"));
  CHECK_THAT(message_of<InputError>([] { open_dataset("image-folder", "train"); }),
             Catch::Contains("root: it is missing"));
  write_pictures(folder.path());
  std::filesystem::create_directory(folder.path() / "birds");
  CHECK_THAT(open_error(folder.path()), Catch::Contains("birds holds no .jpg, .jpeg or .png file"));
  write_bytes(folder.path() / "birds" / "notes.txt", "x");
  CHECK_THAT(open_error(folder.path()), Catch::Contains("birds holds no .jpg, .jpeg or .png file"));
  CHECK_THAT(open_error(folder.path() / "cats" / "1.jpg"), Catch::Contains("expected a folder"));
}

TEST_CASE("image-folder: what is ignored is a remark, hidden files are not even that") {
  const TemporaryFolder folder;
  write_pictures(folder.path());
  write_bytes(folder.path() / "README", "x");
  write_bytes(folder.path() / "cats" / "4.tiff", "x");
  write_bytes(folder.path() / "cats" / ".DS_Store", "x");
  write_bytes(folder.path() / "cats" / "more.jpg" / "5.jpg", "x");
  const auto set = open(folder.path());
  CHECK(set->size() == 5);
  REQUIRE(set->remarks().size() == 1);
  CHECK_THAT(set->remarks()[0], Catch::StartsWith("3 entries ignored") && Catch::Contains("4.tiff") &&
                                    Catch::Contains("README") && Catch::Contains("more.jpg"));
}

TEST_CASE("every proper prefix of an image file is seen to be incomplete") {
  const TemporaryFolder folder;
  for (const char* name : {"1.jpg", "1.png"}) {
    write_picture(folder.path() / name, picture(30, 20, 9));
    const std::string bytes = read_file(folder.path() / name);
    CHECK(incomplete_image(bytes) == "");
    CHECK(incomplete_image(bytes + "trailing") == "");
    for (size_t length = 0; length < bytes.size(); ++length) {
      const bool only_checksum_missing = std::string(name) == "1.png" && length + 4 > bytes.size();
      if (!only_checksum_missing) REQUIRE(incomplete_image(bytes.substr(0, length)) != "");
    }
  }
  // A thumbnail inside the EXIF segment has an end marker of its own.
  const std::string thumbnail = "\xff\xd8\xff\xda" + std::string("\0\2ab\xff\xd9", 6);
  const std::string head = "\xff\xd8\xff\xe1" + std::string("\0\x0c", 2) + thumbnail;
  CHECK(incomplete_image(head) == "the JPEG is truncated");
  CHECK(incomplete_image(head + "\xff\xd9") == "");
}

}  // namespace
}  // namespace pipewright

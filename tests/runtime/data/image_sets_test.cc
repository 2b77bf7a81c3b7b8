// mnist, cifar10, imagenet, highres: sizes, shapes, normalisation, augmentation, and what is said of wrong
// files.
#include "runtime/data/image_sets.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/pictures.h"
#include "tests/runtime/data/set_files.h"

namespace pipewright {
namespace {

using testing::cifar10_pixel;
using testing::cifar10_record;
using testing::message_of;
using testing::read_field;
using testing::read_label;
using testing::TemporaryFolder;
using testing::write_bytes;

using Shape = std::vector<int64_t>;

std::string error_of(const std::string& spec, const std::string& split = "train") {
  return message_of<InputError>([&] { open_dataset(spec, split); });
}

TEST_CASE("synthetic counterparts have the sizes, classes and shapes of the published sets") {
  struct Known {
    const char* name;
    int64_t train, evaluation, classes;
    Shape shape;
  };
  for (const Known& known : {Known{"mnist", 60'000, 10'000, 10, {1, 28, 28}},
                             {"cifar10", 50'000, 10'000, 10, {3, 32, 32}},
                             {"imagenet", 1'281'167, 50'000, 1000, {3, 224, 224}},
                             {"highres", 50'000, 10'000, 1000, {3, 512, 512}}}) {
    const std::string spec = known.name + std::string(":synthetic=yes");
    INFO(spec);
    const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
    CHECK(train->size() == known.train);
    CHECK(evaluation->size() == known.evaluation);
    CHECK(train->classes() == known.classes);
    CHECK(train->fields()[0].sample_type.shape == known.shape);
    const std::vector<float> image = read_field<float>(*train, known.train - 1, 0);
    CHECK(image == read_field<float>(*open_dataset(spec, "train"), known.train - 1, 0, {5, 6}));
    CHECK(image != read_field<float>(*open_dataset(spec + ",seed=1", "train"), known.train - 1, 0));
    CHECK(image != read_field<float>(*evaluation, known.evaluation - 1, 0));
  }
}

TEST_CASE("the trees of files have DDLBench's numbers of images") {
  std::vector<std::pair<int64_t, int64_t>> counts;
  for (const NamedImageSet& set : named_image_sets())
    counts.emplace_back(set.classes * set.train_per_class(), set.classes * set.evaluation_per_class());
  CHECK(counts == std::vector<std::pair<int64_t, int64_t>>{
                      {60'000, 10'000}, {50'000, 10'000}, {1'281'000, 50'000}, {50'000, 10'000}});
}

TEST_CASE("mnist: its own files, with its own normalisation") {
  const TemporaryFolder folder;
  testing::write_mnist(folder.path());
  const std::string spec = "mnist:root=" + folder.path().string();
  const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
  CHECK(train->size() == 5);
  CHECK(evaluation->size() == 3);
  CHECK(read_label(*train, 4) == 4);
  const std::vector<float> image = read_field<float>(*train, 1, 0);
  for (int p = 0; p < 784; ++p)
    REQUIRE(image[static_cast<size_t>(p)] ==
            Approx(((p + 100) % 256 / 255.0 - 0.1307) / 0.3081).margin(1e-5));
  CHECK(open_dataset(spec + ",samples=2,image=32,channels=3", "train")->size() == 2);
  write_bytes(folder.path() / "train-images-idx3-ubyte", "<html>");
  CHECK_THAT(error_of(spec), Catch::Contains("magic number") && Catch::Contains("not a file of 'mnist'"));
}

TEST_CASE("cifar10: its binary files, one after the other") {
  const TemporaryFolder folder;
  testing::write_cifar10(folder.path());
  const auto evaluation = open_dataset("cifar10:root=" + folder.path().string(), "evaluation");
  const auto train = open_dataset("cifar10:root=" + folder.path().string(), "train");
  REQUIRE(train->size() == 15);
  REQUIRE(evaluation->size() == 3);
  const std::vector<double> mean = {.4914, .4822, .4465}, deviation = {.2023, .1994, .2010};
  for (int i = 0; i < 15; ++i) CHECK(read_label(*train, i) == i % 10);
  for (int i = 0; i < 3; ++i) {
    CHECK(read_label(*evaluation, i) == (15 + i) % 10);
    const std::vector<float> image = read_field<float>(*evaluation, i, 0);
    for (size_t p = 0; p < 3072; ++p) {
      const double value = cifar10_pixel(15 + i, static_cast<int>(p)) / 255.0;
      REQUIRE(image[p] == Approx((value - mean[p / 1024]) / deviation[p / 1024]).margin(1e-5));
    }
  }
  // In the folder that the archive unpacks to, too.
  const TemporaryFolder above;
  testing::write_cifar10(above.path() / "cifar-10-batches-bin");
  CHECK(open_dataset("cifar10:root=" + above.path().string(), "train")->size() == 15);
  // Only the labels of what is used are read.
  CHECK(open_dataset("cifar10:samples=4,root=" + folder.path().string(), "train")->size() == 4);
  CHECK_THAT(error_of("cifar10:samples=16,root=" + folder.path().string()),
             Catch::Contains("samples: got 16, expected 1..15"));
}

TEST_CASE("cifar10: a training image is the image moved by up to four pixels over black, perhaps mirrored") {
  const TemporaryFolder folder;
  testing::write_cifar10(folder.path());
  const auto train = open_dataset("cifar10:root=" + folder.path().string(), "train");
  const auto value = [](int image, int channel, int y, int x) {
    static const std::vector<float> mean = {.4914F, .4822F, .4465F}, deviation = {.2023F, .1994F, .2010F};
    const bool inside = 0 <= y && y < 32 && 0 <= x && x < 32;
    const int byte = inside ? cifar10_pixel(image, channel * 1024 + y * 32 + x) : 0;
    const auto c = static_cast<size_t>(channel);
    return (static_cast<float>(byte) / 255 - mean[c]) / deviation[c];
  };
  std::set<std::tuple<int, int, bool>> views;
  for (int64_t epoch = 0; epoch < 300; ++epoch) {
    const std::vector<float> got = read_field<float>(*train, 7, 0, {1, epoch});
    const auto is_view = [&](int right, int down, bool mirrored) {
      for (int c = 0; c < 3; ++c)
        for (int y = 0; y < 32; ++y)
          for (int x = 0; x < 32; ++x)
            if (got[static_cast<size_t>((c * 32 + y) * 32 + x)] !=
                value(7, c, y + down, (mirrored ? 31 - x : x) + right))
              return false;
      return true;
    };
    bool found = false;
    for (int view = 0; view < 162 && !found; ++view) {
      const int right = view % 9 - 4, down = view / 9 % 9 - 4;
      const bool mirrored = view >= 81;
      if (!is_view(right, down, mirrored)) continue;
      found = true;
      views.emplace(right, down, mirrored);
    }
    REQUIRE(found);
  }
  CHECK(views.size() > 110);  // of 162, 300 times at random: 136 are expected
  const auto mirrored =
      std::count_if(views.begin(), views.end(), [](const auto& v) { return std::get<2>(v); });
  CHECK(mirrored > 40);
  CHECK(mirrored < static_cast<int64_t>(views.size()) - 40);
}

TEST_CASE("cifar10: every malformed file is an error that names it") {
  const TemporaryFolder folder;
  testing::write_cifar10(folder.path());
  const std::string spec = "cifar10:root=" + folder.path().string();
  SECTION("cut off") {
    write_bytes(folder.path() / "data_batch_3.bin", cifar10_record(0, 1).substr(0, 3000));
    CHECK_THAT(error_of(spec),
               Catch::Contains("data_batch_3.bin: got 3000 bytes, expected a multiple of 3073") &&
                   Catch::Contains("cifar-10-binary.tar.gz"));
  }
  SECTION("empty") {
    write_bytes(folder.path() / "data_batch_1.bin", "");
    CHECK_THAT(error_of(spec), Catch::Contains("data_batch_1.bin: got 0 bytes"));
  }
  SECTION("a label out of range") {
    write_bytes(folder.path() / "data_batch_2.bin", cifar10_record(0, 9) + cifar10_record(1, 10));
    CHECK_THAT(error_of(spec), Catch::Contains("data_batch_2.bin: record 1: label: got 10, expected 0..9"));
  }
  SECTION("missing") {
    std::filesystem::remove(folder.path() / "data_batch_5.bin");
    CHECK_THAT(error_of(spec), Catch::Contains("no file " + (folder.path() / "data_batch_5.bin").string()));
    CHECK_NOTHROW(open_dataset(spec, "evaluation"));
  }
  SECTION("a folder in its place") {
    std::filesystem::remove(folder.path() / "test_batch.bin");
    std::filesystem::create_directory(folder.path() / "test_batch.bin");
    CHECK_THAT(error_of(spec, "evaluation"), Catch::Contains("test_batch.bin"));
  }
}

TEST_CASE("a folder of images in place of a set has the set's normalisation, crop and flip") {
  const TemporaryFolder folder;
  for (const char* split : {"train", "val"})
    for (const char* name : {"a", "b"})
      testing::write_picture(folder.path() / split / name / "1.png", testing::plain(64, 64, 153, 102, 51));
  const std::string root = ":root=" + folder.path().string();
  const auto colours = [](const Dataset& set) {
    const std::vector<float> image = read_field<float>(set, 0, 0);
    const size_t plane = image.size() / 3, centre = plane / 2 + static_cast<size_t>(std::sqrt(plane)) / 2;
    return std::vector<float>{image[centre], image[plane + centre], image[2 * plane + centre]};
  };
  const auto near = [](const std::vector<float>& got, const std::vector<double>& mean,
                       const std::vector<double>& deviation) {
    for (size_t c = 0; c < 3; ++c)
      CHECK(got[c] == Approx((0.6 - 0.2 * static_cast<double>(c) - mean[c]) / deviation[c]).margin(1e-4));
  };
  near(colours(*open_dataset("cifar10" + root, "train")), {.4914, .4822, .4465}, {.2023, .1994, .2010});
  near(colours(*open_dataset("imagenet" + root, "evaluation")), {.485, .456, .406}, {.229, .224, .225});
  near(colours(*open_dataset("highres" + root, "train")), {.485, .456, .406}, {.229, .224, .225});
  CHECK(open_dataset("mnist" + root, "train")->fields()[0].sample_type.shape == Shape{1, 28, 28});
  CHECK(open_dataset("highres" + root, "train")->fields()[0].sample_type.shape == Shape{3, 512, 512});
  CHECK_THAT(error_of("cifar10" + root + ",samples=1"), Catch::Contains("class by class"));

  // highres and mnist are not augmented: every visit is the same. cifar10 and imagenet are.
  testing::write_picture(folder.path() / "train" / "a" / "1.png", testing::picture(64, 64, 3));
  const auto visits = [&](const std::string& spec) {
    const auto set = open_dataset(spec + root, "train");
    std::set<std::vector<float>> distinct;
    for (int64_t epoch = 0; epoch < 6; ++epoch) distinct.insert(read_field<float>(*set, 0, 0, {0, epoch}));
    return distinct.size();
  };
  CHECK(visits("mnist") == 1);
  CHECK(visits("highres") == 1);
  CHECK(visits("cifar10") > 3);
  CHECK(visits("imagenet") > 3);
}

TEST_CASE("what a form has not is refused with the reason") {
  CHECK_THAT(error_of("cifar10"),
             Catch::Contains("root: it is missing") && Catch::Contains("cifar10:synthetic=yes"));
  CHECK_THAT(error_of("imagenet:synthetic=yes,root=/data"), Catch::Contains("synthetic=yes needs no files"));
  CHECK_THAT(error_of("imagenet:seed=3,root=/data"),
             Catch::Contains("seed: it draws the images of synthetic=yes"));
  CHECK_THAT(error_of("cifar10:synthetic=maybe"), Catch::Contains("got 'maybe', expected no|yes") ||
                                                      Catch::Contains("got 'maybe', expected yes|no"));
  CHECK_THAT(error_of("mnist:synthetic=yes,samples=10001", "evaluation"), Catch::Contains("1..10000"));
  CHECK_THAT(error_of("imagenet:root=/nowhere/at/all"), Catch::Contains("expected a folder"));
  CHECK_THAT(error_of("cifar10:root=/nowhere/at/all"),
             Catch::Contains("no file /nowhere/at/all/data_batch_1.bin"));
}

}  // namespace
}  // namespace pipewright

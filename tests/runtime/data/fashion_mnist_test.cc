#include <zlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "runtime/data/loader.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/set_files.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::idx;
using testing::message_of;
using testing::read_field;
using testing::read_label;
using testing::TemporaryFolder;
using testing::write_bytes;

bool package_is_there() {
  if (std::filesystem::exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) return true;
  testing::skip("Debian's package dataset-fashion-mnist is not installed");
  return false;
}

TEST_CASE("fashion-mnist: the published files") {
  if (!package_is_there()) return;
  const auto train = open_dataset("fashion-mnist", "train"),
             evaluation = open_dataset("fashion-mnist", "evaluation");
  REQUIRE(train->size() == 60000);
  REQUIRE(evaluation->size() == 10000);
  CHECK(train->classes() == 10);
  const std::vector<int64_t> first = {9, 0, 0, 3, 0}, first_evaluation = {9, 2, 1, 1, 6};
  for (int64_t i = 0; i < 5; ++i) {
    CHECK(read_label(*train, i) == first[static_cast<size_t>(i)]);
    CHECK(read_label(*evaluation, i) == first_evaluation[static_cast<size_t>(i)]);
  }
  std::vector<int> counts(10);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < train->size(); ++i) {
    ++counts[static_cast<size_t>(read_label(*train, i))];
    if (i % 10) continue;
    for (const float value : read_field<float>(*train, i, 0)) sum += value, squares += value * value;
  }
  for (const int count : counts) CHECK(count == 6000);
  const double elements = 6000.0 * 784;
  CHECK(sum / elements == Approx(0).margin(0.01));
  CHECK(squares / elements == Approx(1).margin(0.02));  // a tenth of the images

  Loader loader(*train, {0, 1}, std::vector<LoadRequest>(101, {Sampler(60000, 64, 1, true).indices(5), {}}),
                {.count = 0}, 0);
  loader.next();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) loader.next();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  INFO("seconds a minibatch of 64: " << elapsed.count() / 100);
  CHECK(elapsed.count() / 100 < 0.01);  // a hundredth of that on an idle machine
}

TEST_CASE("fashion-mnist: samples=N takes the first N") {
  if (!package_is_there()) return;
  const auto few = open_dataset("fashion-mnist:samples=100", "train");
  CHECK(few->size() == 100);
  CHECK(read_label(*few, 3) == 3);
  CHECK_THAT(message_of<InputError>([] { open_dataset("fashion-mnist:samples=10001", "evaluation"); }),
             Catch::Contains("got 10001, expected 1..10000"));
}

// ---- files made here ----

std::string gzipped(const std::string& bytes) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<unsigned>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Three samples with labels 4, 0, 9; pixel p of image i is (p + 100 i) mod 256.
struct SmallSet {
  TemporaryFolder folder;
  std::string label_bytes = {4, 0, 9};
  std::string image_bytes;

  SmallSet() {
    for (int i = 0; i < 3; ++i) {
      for (int p = 0; p < 784; ++p) image_bytes += static_cast<char>((p + 100 * i) % 256);
    }
    labels(gzipped(idx(0x801, {3}, label_bytes)));
    images(gzipped(idx(0x803, {3, 28, 28}, image_bytes)));
  }
  void labels(const std::string& bytes) const {
    write_bytes(folder.path() / "train-labels-idx1-ubyte.gz", bytes);
  }
  void images(const std::string& bytes) const {
    write_bytes(folder.path() / "train-images-idx3-ubyte.gz", bytes);
  }
  std::unique_ptr<Dataset> open(const std::string& options = "") const {
    return open_dataset("fashion-mnist:root=" + folder.path().string() + options, "train");
  }
  std::string error() const {
    return message_of<InputError>([&] { open(); });
  }
};

float normalised(int pixel) { return (static_cast<float>(pixel) / 255 - 0.2860F) / 0.3530F; }

TEST_CASE("fashion-mnist: pixels are normalised, padded in the centre, repeated over channels") {
  const SmallSet set;
  const std::vector<float> plain = read_field<float>(*set.open(), 1, 0);
  for (int p = 0; p < 784; ++p) REQUIRE(plain[static_cast<size_t>(p)] == normalised((p + 100) % 256));

  const int side = GENERATE(28, 29, 32, 64);
  const auto wide = set.open(",image=" + std::to_string(side) + ",channels=3");
  CHECK(wide->fields()[0].sample_type.shape == std::vector<int64_t>{3, side, side});
  const std::vector<float> got = read_field<float>(*wide, 1, 0);
  const int border = (side - 28) / 2;
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < side; ++y) {
      for (int x = 0; x < side; ++x) {
        const int sy = y - border, sx = x - border;
        const bool inside = 0 <= sy && sy < 28 && 0 <= sx && sx < 28;
        const float expected = inside ? plain[static_cast<size_t>(sy * 28 + sx)] : normalised(0);
        REQUIRE(got[static_cast<size_t>((c * side + y) * side + x)] == expected);
      }
    }
  }
}

TEST_CASE("fashion-mnist: files that are not gzipped") {
  const SmallSet set;
  for (const char* name : {"train-labels-idx1-ubyte", "train-images-idx3-ubyte"}) {
    std::filesystem::remove(set.folder.path() / (std::string(name) + ".gz"));
  }
  write_bytes(set.folder.path() / "train-labels-idx1-ubyte", idx(0x801, {3}, set.label_bytes));
  write_bytes(set.folder.path() / "train-images-idx3-ubyte", idx(0x803, {3, 28, 28}, set.image_bytes));
  const auto open = set.open();
  CHECK(open->size() == 3);
  CHECK(read_label(*open, 2) == 9);
  write_bytes(set.folder.path() / "train-images-idx3-ubyte",
              idx(0x803, {3, 28, 28}, set.image_bytes.substr(1)));
  CHECK_THAT(set.error(), Catch::Contains("got 2351 bytes of data, expected 2352"));
}

TEST_CASE("fashion-mnist: every malformed file is an error that names it") {
  const SmallSet set;
  const std::string labels = idx(0x801, {3}, set.label_bytes),
                    images = idx(0x803, {3, 28, 28}, set.image_bytes);
  SECTION("magic number") {
    set.labels(gzipped(images));
    CHECK_THAT(set.error(),
               Catch::Contains("train-labels-idx1-ubyte.gz: magic number: got 2051, expected 2049"));
  }
  SECTION("not an IDX file at all") {
    set.images("<html>404</html>");
    CHECK_THAT(set.error(), Catch::Contains("train-images-idx3-ubyte.gz: magic number"));
  }
  SECTION("other sizes") {
    set.images(gzipped(idx(0x803, {3, 32, 28}, set.image_bytes)));
    CHECK_THAT(set.error(), Catch::Contains("got images of 32 x 28, expected 28 x 28"));
  }
  SECTION("counts do not agree") {
    set.labels(gzipped(idx(0x801, {2}, set.label_bytes.substr(0, 2))));
    CHECK_THAT(set.error(), Catch::Contains("got 3 images, expected 2"));
  }
  SECTION("no samples") {
    set.labels(gzipped(idx(0x801, {0}, "")));
    set.images(gzipped(idx(0x803, {0, 28, 28}, "")));
    CHECK_THAT(set.error(), Catch::Contains("got 0 images"));
  }
  SECTION("a count that lies, far beyond the memory") {
    set.labels(gzipped(idx(0x801, {0x7fffffff}, set.label_bytes)));
    set.images(gzipped(idx(0x803, {0x7fffffff, 28, 28}, set.image_bytes)));
    CHECK_THAT(set.error(), Catch::Contains("got 3 bytes of data, expected 2147483647"));
  }
  SECTION("too long") {
    set.images(gzipped(images + "x"));
    CHECK_THAT(set.error(), Catch::Contains("got more than the 2352 bytes"));
  }
  SECTION("label out of range") {
    set.labels(gzipped(idx(0x801, {3}, {1, 10, 2})));
    CHECK_THAT(set.error(), Catch::Contains("label 1: got 10, expected 0..9"));
  }
  SECTION("empty file") {
    set.labels("");
    CHECK_THAT(set.error(), Catch::Contains("ends within the header"));
  }
  SECTION("a folder in its place") {
    std::filesystem::remove(set.folder.path() / "train-labels-idx1-ubyte.gz");
    std::filesystem::create_directory(set.folder.path() / "train-labels-idx1-ubyte.gz");
    CHECK_THAT(set.error(), Catch::Contains("cannot be read"));
  }
  SECTION("gzip cut off anywhere") {
    const std::string whole = gzipped(images);
    for (size_t length = 0; length < whole.size(); length += 1 + whole.size() / 50) {
      set.images(whole.substr(0, length));
      CHECK_THAT(set.error(), Catch::Contains("train-images-idx3-ubyte.gz: "));
    }
  }
  SECTION("gzip with any one byte damaged is an error or unharmed, never a crash") {
    const std::string whole = gzipped(labels);
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      set.labels(damaged);
      try {
        const auto open = set.open();
        CHECK(read_label(*open, 0) == 4);  // only in gzip's time stamp and the like
      } catch (const InputError& error) {
        CHECK_THAT(error.what(), Catch::Contains("-ubyte.gz: "));
      }
    }
  }
}

TEST_CASE("fashion-mnist: missing files are said with the remedy") {
  const TemporaryFolder empty;
  CHECK_THAT(message_of<InputError>(
                 [&] { open_dataset("fashion-mnist:root=" + empty.path().string(), "evaluation"); }),
             Catch::Contains("no file " + (empty.path() / "t10k-labels-idx1-ubyte.gz").string()) &&
                 Catch::Contains("root= names the folder"));
}

}  // namespace
}  // namespace pipewright

// Trees of synthetic image files: their layout, that they go on where they ended, and that they can be
// learnt.
#include "runtime/data/image_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "graph/json.h"
#include "tests/runtime/data/helpers.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::read_field;
using testing::read_label;
using testing::TemporaryFolder;
using testing::write_bytes;

ImageTree small_tree() {
  return {.data = "cifar10",
          .classes = 11,
          .image = 16,
          .channels = 3,
          .train_per_class = 12,
          .evaluation_per_class = 3,
          .seed = 4};
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
  return files;
}

TEST_CASE("image tree: as many files as asked for, whatever the threads") {
  const TemporaryFolder one, four;
  std::vector<TreeProgress> seen;
  const TreeProgress end = write_image_tree(small_tree(), one.path() / "tree", 1,
                                            [&](const TreeProgress& at) { seen.push_back(at); });
  CHECK(end.total == 11 * 15);
  CHECK(end.done == end.total);
  CHECK(end.written == end.total);
  REQUIRE(!seen.empty());
  CHECK(seen.back().done == end.total);
  write_image_tree(small_tree(), four.path() / "tree", 4);
  const auto files = files_of(one.path() / "tree");
  CHECK(files == files_of(four.path() / "tree"));
  CHECK(files.size() == 11 * 15 + 1);
  CHECK(files.count("train/class_00/img_00.JPEG") == 1);
  CHECK(files.count("train/class_10/img_11.JPEG") == 1);
  CHECK(files.count("val/class_10/img_2.JPEG") == 1);
  std::map<std::string, int> contents;
  for (const auto& [name, bytes] : files) ++contents[bytes];
  CHECK(contents.size() == files.size());  // no two alike

  const auto set = open_dataset("cifar10:root=" + (one.path() / "tree").string(), "train");
  CHECK(set->size() == 11 * 12);
  CHECK(set->classes() == 11);
  for (int64_t i = 0; i < set->size(); ++i) CHECK(read_label(*set, i) == i / 12);
  CHECK(set->remarks().empty());
}

TEST_CASE("image tree: begun again it makes what is missing and touches nothing else") {
  const TemporaryFolder folder;
  const fs::path tree = folder.path();
  write_image_tree(small_tree(), tree, 2);
  const auto before = files_of(tree);
  const auto time = fs::last_write_time(tree / "train/class_03/img_05.JPEG");
  fs::remove(tree / "train/class_03/img_04.JPEG");
  fs::remove_all(tree / "val/class_07");
  write_bytes(tree / "val/class_02/img_1.JPEG", "");
  write_bytes(tree / "val/class_02/.img_2.JPEG", "half of");
  const TreeProgress end = write_image_tree(small_tree(), tree, 2);
  CHECK(end.written == 1 + 3 + 1);
  CHECK(end.done == 11 * 15);
  fs::remove(tree / "val/class_02/.img_2.JPEG");
  CHECK(files_of(tree) == before);
  CHECK(fs::last_write_time(tree / "train/class_03/img_05.JPEG") == time);
}

TEST_CASE("image tree: another tree or other files in its place are refused") {
  const TemporaryFolder folder;
  write_image_tree(small_tree(), folder.path() / "tree", 1);
  ImageTree other = small_tree();
  other.train_per_class = 13;
  const auto error = [&](const ImageTree& tree, const std::string& name) {
    return message_of<InputError>([&] { write_image_tree(tree, folder.path() / name, 1); });
  };
  CHECK_THAT(error(other, "tree"),
             Catch::Contains("image-tree.json: this tree was begun with train_per_class 12, not 13"));
  write_bytes(folder.path() / "full" / "my.doc", "x");
  CHECK_THAT(error(small_tree(), "full"), Catch::Contains("is not empty"));
  write_bytes(folder.path() / "file", "x");
  CHECK_THAT(error(small_tree(), "file"), Catch::Contains("cannot be made"));
  write_bytes(folder.path() / "tree" / "image-tree.json", "{");
  CHECK_THAT(error(small_tree(), "tree"), Catch::Contains("image-tree.json"));
  ImageTree huge = small_tree();
  huge.train_per_class = int64_t{1} << 40;
  for (int i = 0; i < 2; ++i)
    CHECK_THAT(error(huge, "huge"), Catch::Contains("of free disk, expected about"));
}

TEST_CASE("image tree: the mean of the training images of a class knows the evaluation images") {
  for (const int channels : {1, 3}) {
    const TemporaryFolder folder;
    ImageTree tree = small_tree();
    tree.channels = channels;
    tree.evaluation_per_class = 5;
    write_image_tree(tree, folder.path(), 2);
    const std::string spec =
        "image-folder:image=16,resize=16,crop=centre,flip=no,channels=" + std::to_string(channels) +
        ",root=" + folder.path().string();
    const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
    std::vector<std::vector<float>> means(11, std::vector<float>(static_cast<size_t>(256 * channels)));
    for (int64_t i = 0; i < train->size(); ++i) {
      const std::vector<float> image = read_field<float>(*train, i, 0);
      std::vector<float>& mean = means[static_cast<size_t>(read_label(*train, i))];
      for (size_t p = 0; p < image.size(); ++p) mean[p] += image[p] / 12;
    }
    int right = 0;
    for (int64_t i = 0; i < evaluation->size(); ++i) {
      const std::vector<float> image = read_field<float>(*evaluation, i, 0);
      std::vector<double> distances;
      for (const std::vector<float>& mean : means) {
        distances.push_back(0);
        for (size_t p = 0; p < image.size(); ++p) distances.back() += std::pow(image[p] - mean[p], 2);
      }
      right += std::min_element(distances.begin(), distances.end()) - distances.begin() ==
               read_label(*evaluation, i);
    }
    CHECK(right > 50);  // of 55; 5 by chance
  }
}

}  // namespace
}  // namespace pipewright

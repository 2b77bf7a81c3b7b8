// What every data set must be. A new one adds a line to `specs`.
#include <ATen/ops/ones.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <thread>

#include "graph/random.h"
#include "models/safetensors/safetensors.h"
#include "runtime/data/encoded_text.h"
#include "runtime/data/loader.h"
#include "runtime/data/sequences.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/pictures.h"
#include "tests/runtime/data/set_files.h"
#include "tests/runtime/data/shards.h"
#include "tests/runtime/data/texts.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::TemporaryFolder;

std::vector<std::string> specs(const TemporaryFolder& folder) {
  testing::write_pictures(folder.path() / "pictures");
  const std::string tree = (folder.path() / "tree").string();
  testing::write_pictures(tree + "/train");
  testing::write_pictures(tree + "/val");
  const std::string folder_spec = "image-folder:image=24,root=" + (folder.path() / "pictures").string();
  std::vector<std::string> all = {
      "synthetic-images", "synthetic-images:classes=3,image=17,channels=3,samples=50,noise=0.5,seed=9",
      "synthetic-text",   "synthetic-text:vocabulary=7,tokens=5,samples=20,seed=3",
      folder_spec,        folder_spec + ",crop=padded,channels=1,corrupt=skip"};
  testing::write_mnist(folder.path() / "mnist");
  testing::write_cifar10(folder.path() / "cifar10");
  for (const std::string& spec : std::vector<std::string>{
           "mnist:root=" + (folder.path() / "mnist").string(), "mnist:synthetic=yes",
           "mnist:synthetic=yes,image=32,channels=3,samples=90", "mnist:image=20,root=" + tree,
           "cifar10:root=" + (folder.path() / "cifar10").string(), "cifar10:synthetic=yes,seed=3",
           "cifar10:root=" + tree, "imagenet:image=40,root=" + tree, "imagenet:synthetic=yes,image=40",
           "highres:image=64,root=" + tree, "highres:synthetic=yes,image=64"})
    all.push_back(spec);
  const auto own = folder.path() / "own.safetensors";
  write_safetensors(own, {{"pixels", at::ones({30, 2, 3})}, {"labels", at::ones({30}, at::kLong)}}, {});
  all.push_back("tensors:file=" + own.string());
  const std::string text = testing::write_text(folder.path());
  all.push_back("text:tokens=8,file=" + text);
  all.push_back("masked-text:tokens=8,masked=0.4,file=" + text);
  all.push_back("translation:source=9,target=7,vocabulary=20,held=0.4,file=" +
                testing::write_sentences(folder.path()));
  all.push_back("sentences:tokens=8," + testing::write_classified(folder.path() / "sentences"));
  all.push_back("questions:tokens=16,stride=3,question=5,vocabulary=" +
                testing::write_vocabulary(folder.path()) + ",file=" +
                testing::write_questions(
                    folder.path(), "The film was good, in 1998. It was a film by Ann and Bob, who wrote it.",
                    testing::question("q1", "Who wrote it?", "Ann and Bob", 45) + "," +
                        testing::question("q2", "Was it good or bad, in the year 1998?", "good", 13)));
#ifdef PIPEWRIGHT_HDF5
  testing::write_shard(folder.path() / "shards" / "a.hdf5", testing::random_shard(1, 20, 12));
  testing::write_shard(folder.path() / "shards" / "b.hdf5", testing::random_shard(2, 7, 12));
  all.push_back("wiki-shards:vocabulary=50,root=" + (folder.path() / "shards").string());
#endif
  if (std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
    all.insert(all.end(), {"fashion-mnist:samples=200", "fashion-mnist:samples=200,image=32,channels=3"});
  }
  return all;
}

std::vector<char> read_bytes(const Dataset& dataset, int64_t index, size_t field, SampleKey key) {
  // Guarded on both sides: a data set writes what its type says and not a byte more.
  constexpr size_t kGuard = 64;
  const auto size = static_cast<size_t>(dataset.fields()[field].stored_type().bytes());
  std::vector<char> bytes(size + 2 * kGuard, 0x5a);
  dataset.read(index, field, key, bytes.data() + kGuard);
  for (size_t i = 0; i < kGuard; ++i) {
    REQUIRE(bytes[i] == 0x5a);
    REQUIRE(bytes[bytes.size() - 1 - i] == 0x5a);
  }
  return {bytes.begin() + kGuard, bytes.end() - kGuard};
}

TEST_CASE("conformance: sizes, labels in range, finite values") {
  const TemporaryFolder folder;
  for (const std::string& spec : specs(folder)) {
    for (const char* split : {"train", "evaluation"}) {
      INFO(spec << " " << split);
      const auto set = open_dataset(spec, split);
      REQUIRE(set->size() > 0);
      REQUIRE(set->classes() > 1);
      REQUIRE(!set->fields().empty());
      const auto* const encoded = dynamic_cast<const EncodedDataset*>(set.get());
      bool has_labels = false;
      for (size_t field = 0; field < set->fields().size(); ++field) {
        const DataField& about = set->fields()[field];
        has_labels |= about.name == "labels" || about.name == "starts";
        for (int64_t i = 0; i < std::min<int64_t>(set->size(), 20); ++i) {
          const std::vector<char> bytes = read_bytes(*set, i, field, {1, 2});
          const auto count = static_cast<size_t>(about.sample_type.elements());
          for (size_t e = 0; e < count; ++e) {
            if (about.normalisation) {
              const std::vector<float>&mean = about.normalisation->mean,
                    &deviation = about.normalisation->deviation;
              REQUIRE(static_cast<int64_t>(mean.size()) == about.sample_type.shape.at(0));
              REQUIRE(deviation.size() == mean.size());
              REQUIRE(std::all_of(deviation.begin(), deviation.end(), [](float d) { return d > 0; }));
              REQUIRE(about.sample_type.dtype == "float32");
            } else if (about.sample_type.dtype == "int64") {
              int64_t value = 0;
              std::memcpy(&value, bytes.data() + e * sizeof(value), sizeof(value));
              const bool asks_nothing = about.name == "labels" && value == kNoLabel;
              const int64_t bound =
                  encoded != nullptr && about.name == "tokens" ? encoded->vocabulary() : set->classes();
              REQUIRE((asks_nothing || (0 <= value && value < bound)));
            } else {
              REQUIRE(about.sample_type.dtype == "float32");
              float value = 0;
              std::memcpy(&value, bytes.data() + e * sizeof(value), sizeof(value));
              REQUIRE(std::abs(value) < 100);
            }
          }
        }
        CHECK_NOTHROW(read_bytes(*set, set->size() - 1, field, {}));
      }
      CHECK(has_labels);
    }
  }
}

TEST_CASE("conformance: the same key gives the same bytes, from any thread and from a set opened again") {
  const TemporaryFolder folder;
  for (const std::string& spec : specs(folder)) {
    INFO(spec);
    const auto set = open_dataset(spec, "train"), again = open_dataset(spec, "train");
    const int64_t samples = std::min<int64_t>(set->size(), 12);
    const auto read_all = [samples](const Dataset& from, bool backwards) {
      std::vector<std::vector<char>> all(static_cast<size_t>(samples) * from.fields().size());
      for (int64_t step = 0; step < samples; ++step) {
        const int64_t i = backwards ? samples - 1 - step : step;
        for (size_t field = 0; field < from.fields().size(); ++field) {
          std::vector<char> bytes(static_cast<size_t>(from.fields()[field].stored_type().bytes()));
          from.read(i, field, {4, 7}, bytes.data());
          all[static_cast<size_t>(i) * from.fields().size() + field] = std::move(bytes);
        }
      }
      return all;
    };
    const auto expected = read_all(*again, false);
    std::vector<std::vector<std::vector<char>>> got(4);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < got.size(); ++t) {
      threads.emplace_back([&, t] { got[t] = read_all(*set, t % 2 == 1); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : got) CHECK(each == expected);
  }
}

TEST_CASE("conformance: both splits have the same fields and classes") {
  const TemporaryFolder folder;
  for (const std::string& spec : specs(folder)) {
    INFO(spec);
    const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
    CHECK(train->classes() == evaluation->classes());
    REQUIRE(train->fields().size() == evaluation->fields().size());
    for (size_t i = 0; i < train->fields().size(); ++i) {
      CHECK(train->fields()[i].name == evaluation->fields()[i].name);
      CHECK(train->fields()[i].sample_type == evaluation->fields()[i].sample_type);
    }
  }
}

TEST_CASE("conformance: every row of the table is covered and refuses an unknown option") {
  const TemporaryFolder folder;
  const std::vector<std::string> all = specs(folder);
  for (const DatasetRow& row : dataset_rows()) {
    const std::string name = row.name;
    const bool covered = std::any_of(all.begin(), all.end(), [&](const std::string& spec) {
      return spec == name || spec.rfind(name + ":", 0) == 0;
    });
    if (!covered) testing::skip(name + " is not here to be tested");
    const std::string message =
        testing::message_of<InputError>([&] { open_dataset(name + ":colour=blue", "train"); });
    CHECK_THAT(message, Catch::Contains("unknown option 'colour'"));
    // Every option the table shows is one the data set knows: a malformed value is about that value.
    const std::string options = row.options;
    for (size_t at = 0; at < options.size();) {
      const std::string option = options.substr(at, options.find('=', at) - at);
      const std::string error =
          testing::message_of<InputError>([&] { open_dataset(name + ":" + option + "=/nowhere/", "train"); });
      CHECK_THAT(error, !Catch::Contains("unknown option"));
      const size_t comma = options.find(", ", at);
      at = comma == std::string::npos ? options.size() : comma + 2;
    }
  }
}

// What a loader hands out, minibatch after minibatch: bytes, or what went wrong.
std::vector<std::string> loaded(const Dataset& set, const std::vector<LoadRequest>& requests,
                                DataWorkers workers, int64_t ahead) {
  std::vector<size_t> fields(set.fields().size());
  for (size_t i = 0; i < fields.size(); ++i) fields[i] = i;
  Loader loader(set, fields, requests, std::move(workers), ahead);
  std::vector<std::string> all;
  for (size_t k = 0; k < requests.size(); ++k) {
    std::string bytes;
    try {
      for (const at::Tensor& tensor : loader.next())
        bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    } catch (const RunError& error) {
      bytes = error.what();
    }
    all.push_back(bytes);
  }
  return all;
}

TEST_CASE("conformance: minibatches are the same for every number of workers, with damaged images too") {
  const TemporaryFolder folder;
  std::vector<std::string> all = specs(folder);
  // A damaged image among others, which fails its minibatch or is replaced.
  const auto damaged = folder.path() / "damaged";
  testing::write_pictures(damaged);
  testing::write_bytes(damaged / "cats" / "2.png", "nothing");
  for (const char* options : {",crop=resized", ",crop=padded,corrupt=skip", ",crop=centre,corrupt=skip"})
    all.push_back("image-folder:image=24,root=" + damaged.string() + options);
  KeyedRandom random{6};
  const auto drawn = [&](uint64_t least, uint64_t most) {
    return static_cast<int64_t>(least + random.below(most - least + 1));
  };
  for (const std::string& spec : all) {
    INFO(spec);
    const auto set = open_dataset(spec, "train");
    const int64_t batch = std::min(set->size(), drawn(1, 9));
    const auto seed = random.below(1000);
    const Sampler sampler(set->size(), batch, seed, /*shuffle=*/true);
    std::vector<LoadRequest> requests;
    for (int64_t k = 0; k < 6; ++k) requests.push_back({sampler.indices(k), {seed, sampler.epoch_of(k)}});
    const std::vector<std::string> expected = loaded(*set, requests, {0}, 0);
    for (int i = 0; i < 3; ++i) REQUIRE(loaded(*set, requests, {drawn(1, 5)}, drawn(1, 5)) == expected);
  }
}

}  // namespace
}  // namespace pipewright

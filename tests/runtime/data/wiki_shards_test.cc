// HDF5 files as BERT is trained with them: what is read of them, and what is refused.
#include <thread>

#include "runtime/data/encoded_text.h"
#include "runtime/data/sequences.h"
#include "tests/runtime/data/helpers.h"
#include "tests/runtime/data/shards.h"
#include "tests/support/skip.h"

namespace pipewright {
namespace {

using testing::message_of;
using testing::read_field;
using testing::TemporaryFolder;
using Numbers = std::vector<int64_t>;

#ifndef PIPEWRIGHT_HDF5

TEST_CASE("wiki-shards: a build without HDF5 says what to install") {
  CHECK_THAT(message_of<InputError>([] { open_dataset("wiki-shards:root=/", "train"); }),
             Catch::Contains("this build reads no HDF5 files") && Catch::Contains("libhdf5-dev"));
  testing::skip("built without HDF5 (package libhdf5-dev)");
}

#else

std::string shards_error(const std::filesystem::path& root, const std::string& options = "") {
  return message_of<InputError>(
      [&] { open_dataset("wiki-shards:root=" + root.string() + options, "train"); });
}

TEST_CASE("wiki-shards: samples are the rows of all shards, labels stand where the tokens are masked") {
  const TemporaryFolder folder;
  std::vector<testing::Shard> shards;
  for (uint64_t i = 0; i < 20; ++i) {  // more than stay open
    shards.push_back(testing::random_shard(i, 3, 12));
    testing::write_shard(
        folder.path() / ("wiki_training_" + std::string(1, static_cast<char>('a' + i)) + ".hdf5"),
        shards.back());
  }
  const auto data = open_dataset("wiki-shards:vocabulary=50,root=" + folder.path().string(), "train");
  REQUIRE(data->size() == 60);
  CHECK(data->classes() == 50);
  const auto check = [&](int64_t sample) {
    const testing::Shard& shard = shards[static_cast<size_t>(sample / 3)];
    const auto row = static_cast<size_t>(sample % 3);
    CHECK(read_field<int64_t>(*data, sample, kEncodedTokens) == shard.at("input_ids")[row]);
    CHECK(read_field<int64_t>(*data, sample, kEncodedMask) == shard.at("input_mask")[row]);
    CHECK(read_field<int64_t>(*data, sample, kEncodedSegments) == shard.at("segment_ids")[row]);
    Numbers labels(12, kNoLabel);
    for (size_t i = 0; i < 4; ++i) {
      const int64_t place = shard.at("masked_lm_positions")[row][i];
      if (place > 0) labels[static_cast<size_t>(place)] = shard.at("masked_lm_ids")[row][i];
    }
    CHECK(read_field<int64_t>(*data, sample, 3) == labels);
    CHECK(read_field<int64_t>(*data, sample, 4) == shard.at("next_sentence_labels")[row]);
  };
  for (int64_t sample = 0; sample < 60; ++sample) check((sample * 23) % 60);
}

TEST_CASE("wiki-shards: several threads read, files called _test_ are for evaluation") {
  const TemporaryFolder folder;
  testing::write_shard(folder.path() / "corpus_training_0.hdf5", testing::random_shard(1, 9, 10));
  testing::write_shard(folder.path() / "corpus_test_0.h5", testing::random_shard(2, 4, 10));
  const std::string spec = "wiki-shards:root=" + folder.path().string();
  const auto train = open_dataset(spec, "train"), evaluation = open_dataset(spec, "evaluation");
  CHECK(train->size() == 9);
  CHECK(evaluation->size() == 4);
  std::vector<Numbers> alone, beside(36);
  for (int64_t i = 0; i < 9; ++i) alone.push_back(read_field<int64_t>(*train, i, 0));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 9; ++i) {
        Numbers row(10);
        train->read(static_cast<int64_t>(i), 0, {}, row.data());
        beside[9 * t + i] = row;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < beside.size(); ++i) CHECK(beside[i] == alone[i % 9]);
}

TEST_CASE("wiki-shards: what does not fit is refused, with the file, the table and the row") {
  const TemporaryFolder folder;
  const auto root = folder.path() / "shards";
  CHECK_THAT(shards_error(root), Catch::Contains("No such file"));
  CHECK_THAT(message_of<InputError>([] { open_dataset("wiki-shards", "train"); }),
             Catch::Contains("it is missing"));
  std::filesystem::create_directories(root);
  CHECK_THAT(shards_error(root), Catch::Contains("holds no file *.hdf5 or *.h5"));

  const auto file = root / "a.hdf5";
  testing::write_bytes(file, "not HDF5");
  CHECK_THAT(shards_error(root), Catch::Contains("a.hdf5: is no HDF5 file"));

  const testing::Shard good = testing::random_shard(3, 4, 8);
  const auto changed = [&](const std::string& table, const std::function<void(testing::Shard&)>& change) {
    testing::Shard shard = good;
    change(shard);
    testing::write_shard(file, shard);
    CAPTURE(table);
    CHECK_THAT(shards_error(root), Catch::Contains("'" + table + "'"));
  };
  changed("segment_ids", [](auto& shard) { shard.erase("segment_ids"); });
  changed("masked_lm_ids", [](auto& shard) { shard["masked_lm_ids"].pop_back(); });
  changed("input_mask", [](auto& shard) {
    for (auto& row : shard["input_mask"]) row.pop_back();
  });

  const auto broken = [&](const std::string& table, int64_t number, size_t field) {
    testing::Shard shard = good;
    shard[table][2][0] = number;
    testing::write_shard(file, shard);
    const auto data = open_dataset("wiki-shards:vocabulary=50,root=" + root.string(), "train");
    CAPTURE(table);
    CHECK_THAT(message_of<RunError>([&] { read_field<int64_t>(*data, 2, field); }),
               Catch::Contains("a.hdf5: row 2 of '" + table + "': got " + std::to_string(number)));
    CHECK_NOTHROW(read_field<int64_t>(*data, 1, field));
  };
  broken("input_ids", 50, 0);
  broken("input_mask", 2, 1);
  broken("segment_ids", -1, 2);
  broken("masked_lm_positions", 8, 3);
  broken("masked_lm_ids", 1000, 3);
  broken("next_sentence_labels", 3, 4);

  testing::write_shard(file, good);
  testing::write_shard(root / "b.hdf5", testing::random_shard(3, 4, 9));
  CHECK_THAT(shards_error(root), Catch::Contains("b.hdf5: table 'input_ids': got 4 x 9, expected 4 x 8"));
}

#endif

}  // namespace
}  // namespace pipewright

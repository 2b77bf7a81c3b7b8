// What the tests of data sets share.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "graph/error.h"
#include "runtime/data/dataset.h"
#include "runtime/data/normalised.h"

namespace pipewright::testing {

/// A folder of its own, removed with all in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pipewright-data-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

/// One field of one sample, as T: of a field that is stored as bytes, what is made of these.
template <typename T>
std::vector<T> read_field(const Dataset& dataset, int64_t index, size_t field, SampleKey key = {}) {
  const DataField& of = dataset.fields()[field];
  std::vector<T> values(static_cast<size_t>(of.sample_type.elements()));
  REQUIRE(static_cast<int64_t>(values.size() * sizeof(T)) == of.sample_type.bytes());
  if constexpr (std::is_same_v<T, float>) {
    if (of.normalisation) {
      std::vector<uint8_t> bytes(values.size());
      dataset.read(index, field, key, bytes.data());
      NormalisedBytes(*of.normalisation).write(bytes.data(), bytes.size(), values.data());
      return values;
    }
  }
  dataset.read(index, field, key, values.data());
  return values;
}

inline int64_t read_label(const Dataset& dataset, int64_t index) {
  return read_field<int64_t>(dataset, index, 1)[0];
}

/// "what; remedy" of the E that `run` throws.
template <typename E>
std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const E& error) {
    return std::string(error.what()) + "; " + error.remedy();
  }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace pipewright::testing

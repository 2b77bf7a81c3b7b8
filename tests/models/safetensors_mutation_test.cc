// Damaged files of tensors: refused with a reason or read whole, in memory that the file's size bounds.
// PIPEWRIGHT_MUTATIONS sets how many.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "graph/error.h"
#include "graph/json.h"
#include "models/safetensors/safetensors.h"
#include "tests/support/counted_memory.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using testing::live_bytes;
using testing::peak_bytes;
using testing::TemporaryFolder;

constexpr int64_t kFactor = 16;
constexpr int64_t kFixed = 64 << 10;  // messages, buffers of the C++ library

size_t below(std::mt19937_64& random, size_t end) { return random() % end; }

std::string mutated(std::string bytes, std::mt19937_64& random) {
  static const std::vector<std::string> strange = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   ",",
                                                   ":",
                                                   "0",
                                                   "-1",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "[0",
                                                   "[[[",
                                                   "null",
                                                   "\"F64\"",
                                                   "{}",
                                                   "\\u",
                                                   "\xff",
                                                   "  ",
                                                   "\"dtype\"",
                                                   "\"__metadata__\":{},"};
  for (size_t i = 1 + below(random, 3); i > 0; --i) {
    const size_t at = below(random, std::min<size_t>(bytes.size(), 400));
    switch (below(random, 7)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
        break;
      case 2:
        bytes.resize(below(random, bytes.size()) + 1);
        break;
      case 3:
        bytes.insert(at, strange[below(random, strange.size())]);
        break;
      case 4:
        bytes.erase(at, 1 + below(random, 9));
        break;
      case 5:  // digits: shapes and offsets
        for (size_t j = at; j < bytes.size(); ++j) {
          if (bytes[j] < '0' || bytes[j] > '9') continue;
          bytes[j] = static_cast<char>('0' + below(random, 10));
          break;
        }
        break;
      default:
        bytes[below(random, 8)] = static_cast<char>(random());
        break;
    }
    if (bytes.empty()) bytes = "x";
  }
  return bytes;
}

// True if the file is accepted; all its tensors are then read.
bool accepted(const std::filesystem::path& file, int64_t size) {
  const int64_t before = live_bytes;
  peak_bytes = live_bytes;
  bool good = true;
  try {
    const SafetensorsFile opened(file);
    for (const SafetensorsEntry& entry : opened.tensors()) {
      const at::Tensor tensor = opened.read(entry);
      good = good && static_cast<int64_t>(tensor.nbytes()) == entry.bytes;
    }
    CHECK(good);
  } catch (const InputError& error) {
    good = false;
    if (std::string(error.what()).rfind(file.string(), 0) != 0) FAIL("names no file: " << error.what());
  }
  const int64_t used = peak_bytes - before;
  if (used > kFactor * size + kFixed) FAIL(used << " bytes for a file of " << size);
  return good;
}

TEST_CASE("mutated files are refused with the file's name or read whole, in little memory") {
  const char* count = std::getenv("PIPEWRIGHT_MUTATIONS");
  const int64_t mutations = count ? std::atoll(count) : 5000;
  const TemporaryFolder folder;
  const auto file = folder / "f.safetensors";
  std::vector<std::string> originals;
  write_safetensors(
      file, {{"w", at::randn({3, 5})}, {"b", at::zeros({5}, at::kHalf)}, {"m", at::ones({3}, at::kBool)}},
      {{"format", "pt"}});
  originals.push_back(read_file(file));
  NamedTensors many;
  for (int i = 0; i < 40; ++i) many.emplace_back("t" + std::to_string(i), at::zeros({i % 4}));
  write_safetensors(file, many, {});
  originals.push_back(read_file(file));

  std::mt19937_64 random(7);
  int64_t good = 0;
  for (int64_t i = 0; i < mutations; ++i) {
    const std::string bytes = mutated(originals[below(random, originals.size())], random);
    {
      std::FILE* out = std::fopen(file.c_str(), "wb");
      std::fwrite(bytes.data(), 1, bytes.size(), out);
      std::fclose(out);
    }
    good += accepted(file, static_cast<int64_t>(bytes.size())) ? 1 : 0;
  }
  INFO(good << " of " << mutations << " were still correct");
  CHECK(good < mutations / 2);
}

TEST_CASE("headers that are all brackets, names or numbers use little memory") {
  const TemporaryFolder folder;
  const auto file = folder / "f.safetensors";
  const auto repeat = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  std::string names;
  std::string metadata;
  std::string tensors;
  for (int i = 0; i < 20000; ++i) {
    const std::string name = "\"" + std::to_string(i) + "\"";
    names += name + ":{},";
    metadata += name + ":\"\",";
    tensors += name + R"(:{"dtype":"U8","shape":[],"data_offsets":[0,0]},)";
  }
  for (const std::string& json :
       {repeat("{\"a\":", 50000) + repeat("}", 50000), "{\"a\":{\"shape\":" + repeat("[", 50000) + "}}",
        "{\"a\":{\"shape\":[" + repeat("0,", 100000) + "0]}}", "{" + names + "\"x\":{}}",
        "{\"__metadata__\":{" + metadata + "\"x\":\"\"}}", "{" + tensors + "\"x\":{}}",
        "{\"" + repeat("x", 200000) + "\":1}"}) {
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
    write_file(file, bytes + json);
    accepted(file, static_cast<int64_t>(8 + json.size()));
  }
}

}  // namespace
}  // namespace pipewright

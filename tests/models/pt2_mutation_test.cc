// Damaged exported programs: read whole, or refused in one line, in memory that the file's size bounds.
// PIPEWRIGHT_MUTATIONS sets how many, PIPEWRIGHT_MUTATION_SEED which (several processes share the work so); best in a build
// with `cmake --preset asan`, and with TMPDIR on a file system in memory.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "graph/error.h"
#include "models/load.h"
#include "models/pt2_archive.h"
#include "tests/models/pt2_files.h"
#include "tests/support/counted_memory.h"
#include "tests/support/temporary_folder.h"

namespace pipewright {
namespace {

using namespace testing;

// Of what operator new gives, besides the tensors themselves.
constexpr int64_t kFactor = 16;
constexpr int64_t kFixed = 1 << 20;

size_t below(std::mt19937_64& random, size_t end) { return random() % end; }

std::string damaged(std::string bytes, std::mt19937_64& random) {
  static const std::vector<std::string> strange = {"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "\"",
                                                   ",",
                                                   ":",
                                                   "-1",
                                                   "0",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "9223372036854775807",
                                                   "null",
                                                   "true",
                                                   "\"as_none\"",
                                                   "\"as_int\"",
                                                   "\"as_expr\"",
                                                   "\"as_graph\"",
                                                   "\"s0//0\"",
                                                   "\"..\"",
                                                   "\xff",
                                                   "PK\x05\x06",
                                                   "{}"};
  for (size_t i = 1 + below(random, 4); i > 0; --i) {
    if (bytes.empty()) return bytes;
    const size_t at = below(random, bytes.size());
    switch (below(random, 6)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, strange[below(random, strange.size())]);
        break;
      case 3:
        bytes.erase(at, 1 + below(random, 40));
        break;
      case 4:  // a number
        for (size_t j = at; j < bytes.size() && j < at + 2000; ++j) {
          if (std::isdigit(static_cast<unsigned char>(bytes[j])) == 0) continue;
          bytes.replace(j, 1, strange[7 + below(random, 5)]);
          break;
        }
        break;
      default: {  // a piece of it, elsewhere
        const size_t from = below(random, bytes.size());
        bytes.insert(at, bytes.substr(from, 1 + below(random, 200)));
      }
    }
  }
  return bytes;
}

TEST_CASE("damaged programs are refused, never a crash") {
  const char* asked = std::getenv("PIPEWRIGHT_MUTATIONS");
  const int64_t count = asked != nullptr ? std::atoll(asked) : 400;
  const char* seed = std::getenv("PIPEWRIGHT_MUTATION_SEED");
  const TemporaryFolder folder;
  const auto file = folder.path() / "damaged.pt2";
  const std::vector<std::string> names = {"no_loss_mse", "open_batch", "modes", "rotary"};
  std::vector<Records> records;
  std::vector<std::string> files;
  for (const std::string& name : names) {
    records.push_back(records_of(pt2_fixture(name)));
    files.push_back(read_file(pt2_fixture(name)));
  }
  std::mt19937_64 random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  int64_t read = 0;
  double most = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Mostly the first, which is the smallest and read the quickest.
    const size_t which = below(random, 32) != 0 ? 0 : below(random, names.size());
    if (i % 3 == 0) {  // the container
      write_file(file, damaged(files[which], random));
    } else {  // a text in a sound container
      Records changed = records[which];
      const std::string record = i % 3 == 1 ? "models/model.json" : "data/weights/model_weights_config.json";
      changed[record] = damaged(changed.at(record), random);
      std::filesystem::remove(file);
      write_records(changed, file);
    }
    CAPTURE(i, names[which]);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    const int64_t before = live_bytes;
    peak_bytes = live_bytes;
    try {
      const Model model = load_model(file.string() + (which == 0 ? ":loss=mse" : ""), 4);
      for (const auto& [name, stored] : model.stored) model.archive->read(stored);
      ++read;
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
    most = std::max(most, static_cast<double>(peak_bytes - before) / static_cast<double>(size));
    if (peak_bytes - before > kFactor * size + kFixed)
      FAIL(peak_bytes - before << " bytes for a file of " << size);
  }
  INFO("at most " << most << " times the file");
  CHECK(read < count);
}

}  // namespace
}  // namespace pipewright

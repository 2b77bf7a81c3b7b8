// What a message may be made of.
#include "graph/printable.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("control characters are shown instead of being sent to the terminal") {
  CHECK(printable(std::string("a\0b\x1b[2J\r\x7f", 9)) == "a\\x00b\\x1b[2J\\x0d\\x7f");
  CHECK(printable("Grüße, 模型\nzweite") == "Grüße, 模型\nzweite");
}

TEST_CASE("a line is short, whatever a file had for a name, and keeps its end") {
  const std::string shown = printable("node '" + std::string(10'000'000, 'x') + "' failed: the reason");
  CHECK(shown.size() < 2100);
  CHECK_THAT(shown, Contains("node 'xxx") && Contains("' failed: the reason") && Contains("left out"));
}

TEST_CASE("no text of a document has a NUL, which would cut the messages that it is in") {
  for (const char* text : {"{\"a\": \"x\\u0000y\"}", "{\"x\\u0000y\": 1}"})
    CHECK_THROWS_WITH(parse_json(text, "x.json"), Contains("x.json") && Contains("NUL"));
}

TEST_CASE("a document has a bounded number of values, whatever they are") {
  std::string numbers = "[0", keys = "{\"\": 0";
  for (int i = 0; i < (1 << 22); ++i) numbers += ",0";
  CHECK_THROWS_WITH(parse_json(numbers + "]", "x.json"), Contains("more than 4194304 values"));
  for (int i = 0; i < (1 << 10); ++i) keys += ",\"" + std::to_string(i) + "\":[[],[{}]]";
  CHECK(parse_json(keys + "}", "x.json").size() == 1025);
}

TEST_CASE("any bytes become lines of bounded length without control characters, and words stay") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string text(random() % 6000, ' ');
    const bool bytes = random() % 2 == 0;
    for (char& c : text) c = static_cast<char>(bytes ? random() : ' ' + random() % 95);
    const std::string shown = printable(text);
    CHECK(std::count(shown.begin(), shown.end(), '\n') == std::count(text.begin(), text.end(), '\n'));
    size_t longest = 0;
    for (size_t at = 0; at <= shown.size();) {
      const size_t end = std::min(shown.find('\n', at), shown.size());
      longest = std::max(longest, end - at);
      at = end + 1;
    }
    CHECK(longest <= 4 * 2000);
    CHECK(std::none_of(shown.begin(), shown.end(), [](char c) { return c >= 0 && c < 0x20 && c != '\n'; }));
    if (!bytes && text.size() <= 2000) CHECK(shown == text);
  }
}

}  // namespace
}  // namespace pipewright

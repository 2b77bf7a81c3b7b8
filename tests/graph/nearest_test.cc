#include "graph/nearest.h"

#include <catch2/catch.hpp>

namespace pipewright {

TEST_CASE("nearest finds likely slips") {
  struct Row {
    std::string word;
    std::vector<std::string> candidates;
    std::string expected;
  };
  const std::vector<Row> rows = {
      {"vgg61", {"vgg16", "vgg19"}, "vgg16"},                        // a swap is one edit
      {"batch_size", {"batch-size", "data"}, "batch-size"},          // replaced
      {"forwrd_seconds", {"forward_seconds"}, "forward_seconds"},    // missing
      {"modell", {"model", "mode"}, "model"},                        // too many
      {"VGG16", {"vgg16"}, "vgg16"},                                 // case
      {"stage", {"stages", "stagey"}, "stages"},                     // ties: the first
      {"backward_seconds", {"forward_seconds"}, "forward_seconds"},  // 4 edits of 16 letters
      {"resnet", {"mlp", "vgg16"}, ""},
      {"dp", {"xy"}, ""},  // nothing in common
      {"a", {"b"}, ""},
      {"", {"a"}, ""},
      {"a", {}, ""},
      {"same", {"same"}, "same"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.word);
    CHECK(nearest(row.word, row.candidates) == row.expected);
  }
}

TEST_CASE("nearest is quick and calm with absurd words") {
  const std::string endless(1000000, 'x');
  CHECK(nearest(endless, {"x", endless}) == "");
  CHECK(nearest("x", {endless}) == "");
}

TEST_CASE("a suggestion is the nearest name, or the known ones") {
  CHECK(suggestion("vgg61", {"vgg19", "vgg16"}) == "; did you mean 'vgg16'?");
  CHECK(suggestion("zebra", {"sgd", "adam"}) == "; known: sgd, adam");
  CHECK(suggestion("zebra", {}) == "");
  std::vector<std::string> many(40, "abcdefghijkl");
  CHECK(suggestion("zebra", many).find("... (40 in all)") != std::string::npos);
}

}  // namespace pipewright

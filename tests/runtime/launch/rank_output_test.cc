// What a launcher shows of what its ranks print.
#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "runtime/launch/rank_output.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;

TEST_CASE("rank output: errors with their remedies are held back, the rest passes, however it is cut") {
  const std::string shown =
      "epoch 1\rminibatch 2\n  indented, no remedy\npipewright-runtime: warning\n\npipe\n";
  const std::string error = "pipewright-runtime: error: it broke\n  mend it\n";
  const std::string all = "before\n" + error + shown + error + "after";
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    WithoutErrors filter;
    std::string out;
    for (size_t at = 0; at < all.size();) {
      const size_t size = 1 + random() % 20;
      out += filter.take(std::string_view(all).substr(at, size));
      at += size;
    }
    REQUIRE(out == "before\n" + shown + "after");
    REQUIRE(filter.held() == error + error);
    REQUIRE(filter.held().empty());
  }
}

TEST_CASE("rank output: what can be no error is shown before its line has ended") {
  WithoutErrors filter;
  CHECK(filter.take("epoch") == "epoch");
  CHECK(filter.take(" 1\rpipewright-runtime: e") == " 1\r");
  CHECK(filter.take("xtra") == "pipewright-runtime: extra");
  CHECK(filter.held().empty());
}

TEST_CASE("rank output: the last error of a log, with its remedy and code") {
  const pipewright::testing::TemporaryFolder folder;
  CHECK_FALSE(last_error(folder / "none", ExitCode::kFailed));
  std::ofstream(folder / "log")
      << "words\npipewright-runtime: error: first\n  cure\npipewright-runtime: error: second\n"
         "  another cure\nlast words\n  indented\n";
  const auto error = last_error(folder / "log", ExitCode::kBadInput);
  REQUIRE(error);
  CHECK(error->what() == std::string("second"));
  CHECK(error->remedy() == "another cure");
  CHECK(error->code() == ExitCode::kBadInput);
}

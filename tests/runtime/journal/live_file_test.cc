// live.json: what ranks do, for who watches.
#include "runtime/journal/live_file.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "graph/document.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace fs = std::filesystem;

TEST_CASE("live.json: has what ranks said last, and goes with the run") {
  const TemporaryFolder folder;
  const fs::path file = folder / LiveStatus::kFile;
  {
    LiveFile live(folder.path(), 40, 10);
    CHECK_FALSE(fs::exists(file));
    live.take(1, {"forward of minibatch 3", 0.5, 3, 0.25, 4096}, false);
    const auto status = read_document<LiveStatus>(file);
    CHECK(status.minibatches == 40);
    CHECK(status.minibatches_per_epoch == 10);
    REQUIRE(status.ranks.size() == 1);
    CHECK(status.ranks.at(1).operation == "forward of minibatch 3");
    CHECK(status.ranks.at(1).minibatch == 3);
    CHECK(status.ranks.at(1).heard_at_seconds == status.at_seconds);
    live.take(0, {"", 0, -1, 0, 0}, true);  // within the second: not written yet
    CHECK(document_text(read_document<LiveStatus>(file)) == document_text(status));
  }
  CHECK(fs::is_empty(folder.path()));
}

// Bytes given to a disk count as work of rank 0, on which others wait for as long as it gets something done.
TEST_CASE("live.json: is not written while no rank gets on") {
  const TemporaryFolder folder;
  LiveFile live(folder.path(), 40, 10);
  const RankStatus stuck{"receive activation of minibatch 3", 0.5, 3, 0.5, 0};
  live.take(0, stuck, false);
  const fs::path file = folder / LiveStatus::kFile;
  fs::remove(file);
  RankStatus later = stuck;
  later.seconds = later.waited_seconds = 2;
  const auto until = std::chrono::steady_clock::now() + LiveFile::kEvery + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < until) live.take(0, later, false);
  CHECK_FALSE(fs::exists(file));
  later.minibatch = 4;
  live.take(0, later, false);
  CHECK(read_document<LiveStatus>(file).ranks.at(0).minibatch == 4);
}

TEST_CASE("live.json: a folder that cannot be written ends no run") {
  const TemporaryFolder folder;
  LiveFile live(folder / "gone", 40, 10);
  CHECK_NOTHROW(live.take(0, {"forward of minibatch 3", 0.5, 3, 0.25, 4096}, false));
}

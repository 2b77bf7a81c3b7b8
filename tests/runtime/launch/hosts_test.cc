#include "runtime/launch/hosts.h"

#include <catch2/catch.hpp>

#include "graph/document.h"
#include "graph/error.h"
#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using namespace pipewright::testing;

namespace {
std::vector<HostPlace> placed(const std::string& text, int64_t ranks) {
  const TemporaryFolder folder;
  write_file(folder / "hosts", text);
  return place_ranks_on_hosts((folder / "hosts").string(), ranks);
}
}  // namespace

TEST_CASE("hosts: ranks fill them in order") {
  const auto places = placed("# two of ours\nnode1 slots=2\n\nnode2   # the slow one\nnode3 slots=4\n", 5);
  REQUIRE(places.size() == 5);
  const std::vector<std::string> hosts = {"node1", "node1", "node2", "node3", "node3"};
  const std::vector<int64_t> local = {0, 1, 0, 0, 1};
  const std::vector<int64_t> together = {2, 2, 1, 2, 2};
  for (size_t i = 0; i < 5; ++i) {
    CHECK(places[i].host == hosts[i]);
    CHECK(places[i].local_rank == local[i]);
    CHECK(places[i].local_ranks == together[i]);
  }
}

TEST_CASE("hosts: what is wrong is an error with its line") {
  CHECK_THROWS_WITH(placed("node1\nnode2 slot=2\n", 2), Catch::Contains(":2: 'node2 slot=2': expected HOST"));
  CHECK_THROWS_AS(placed("node1 slots=0\n", 1), InputError);
  CHECK_THROWS_AS(placed("node1 slots=\n", 1), InputError);
  CHECK_THROWS_AS(placed("node1 slots=2x\n", 1), InputError);
  CHECK_THROWS_AS(placed("node1 slots=2 fast\n", 1), InputError);
  CHECK_THROWS_AS(placed("-oProxyCommand=x\n", 1), InputError);
  CHECK_THROWS_WITH(placed("node1\nnode1\n", 1), Catch::Contains("twice"));
  CHECK_THROWS_WITH(placed("node1\n", 2), Catch::Contains("1 slots for 2 ranks"));
  CHECK_THROWS_AS(place_ranks_on_hosts("/nowhere/hosts", 1), InputError);
}

TEST_CASE("hosts: a shell splits a line into the words it was made of") {
  const std::vector<std::string> words = {"a b", "it's", "", "$HOME", "\"x\"", "back\\slash", "*", ";true"};
  const TemporaryFolder folder;
  Process shell({"/bin/sh", "-c", "printf '%s|' " + shell_line(words)}, folder / "out", folder / "err");
  REQUIRE(shell.wait(std::chrono::seconds(60)) == 0);
  std::string expected;
  for (const std::string& word : words) expected += word + "|";
  CHECK(shell.output() == expected);
}

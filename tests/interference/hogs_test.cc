// The built-in hogs: what they do, and that they take a core and give it back.
#include "interference/hogs.h"

#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "graph/error.h"
#include "graph/json.h"
#include "interference/core_features.h"
#include "interference/hog_work.h"
#include "test_paths.h"
#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace pipewright::testing {
namespace {

using Catch::Contains;

std::vector<std::string> words(const std::string& kind, int64_t processes, int64_t core) {
  return {std::string(PIPEWRIGHT_BINARY_DIR) + "/interference_hog", kind, std::to_string(core),
          std::to_string(processes)};
}

}  // namespace

TEST_CASE("hogs: a round of each kind ends") {
  std::set<std::string> names;
  for (const HogKind& kind : hog_kinds()) {
    CAPTURE(kind.name);
    names.insert(kind.name);
    const auto round = kind.make();
    for (int i = 0; i < 3; ++i) round();
    CHECK(std::string(hog_kind(kind.name, "x").name) == kind.name);
  }
  CHECK(names == std::set<std::string>{"matrix", "copy", "loopback"});
  CHECK_THAT(error_of<InputError>([] { hog_kind("matrx", "--hogs"); }),
             Contains("--hogs: ") && Contains("did you mean 'matrix'?"));
}

TEST_CASE("hogs of each kind take the core that they are told, and are gone afterwards") {
  const int64_t core = cores_of_process().back();
  for (const HogKind& kind : hog_kinds()) {
    CAPTURE(kind.name);
    Hogs hogs(words(kind.name, 2, core));
    // Until they have had something, however busy the machine is.
    const CoreReader reader(core);
    const CoreReading first = reader.read();
    double busy = 0;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (busy < 0.1 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      busy = reader.read().host.cores.at(core).busy_seconds - first.host.cores.at(core).busy_seconds;
    }
    CHECK(busy >= 0.1);
    CHECK(hogs.end() > 0);
  }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("hogs that go out of scope are ended, and what cannot start says so") {
  { Hogs hogs(words("matrix", 1, cores_of_process().back())); }
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK_THAT(error_of<RunError>([] { Hogs hogs({"/no/such/program"}); }), Contains("/no/such/program"));
  CHECK_THAT(error_of<RunError>([] { Hogs hogs({"/bin/true"}); }), Contains("ended before"));
}

TEST_CASE("interference_hog says how much of the core its processes had, and what is wrong with its words") {
  const TemporaryFolder folder;
  const int64_t core = cores_of_process().back();
  {
    Process hog(words("copy", 3, core), folder / "out", folder / "error");
    REQUIRE(eventually(std::chrono::seconds(60), [&] { return hog.output().find("running\n") == 0; }));
    hog.signal(SIGTERM);
    CHECK(hog.wait(std::chrono::seconds(60)) == 0);
    const std::string said = hog.output().substr(std::string("running\n").size());
    const Json json = parse_json(said, "hog");
    CHECK(json["kind"] == "copy");
    CHECK(json["core"] == core);
    CHECK(json["processes"] == 3);
    CHECK(json["seconds"].get<double>() > 0);
    CHECK(json["cpu_seconds"].get<double>() >= 0);
  }
  const auto refused = [&](std::vector<std::string> command) {
    Process hog(command, folder / "out", folder / "error");
    CHECK(hog.wait(std::chrono::seconds(60)) == 2);
    return hog.error();
  };
  CHECK_THAT(refused({words("copy", 1, core)[0]}), Contains("expected KIND CORE PROCESSES"));
  CHECK_THAT(refused(words("cpoy", 1, core)), Contains("did you mean 'copy'?"));
  CHECK_THAT(refused(words("copy", 17, core)), Contains("processes: 17 is not in 1..16"));
  CHECK_THAT(refused(words("copy", 1, 1000)), Contains("core 1000"));
}

}  // namespace pipewright::testing

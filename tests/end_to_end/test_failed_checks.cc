// A defect of ours, wherever it shows: said once, with one exit code and the flight record's name.
#include <catch2/catch.hpp>

#include "tests/end_to_end/checkpointed_runs.h"

namespace pipewright::testing {
namespace {

TEST_CASE("a check that fails on any rank is said once, with code 1 and the rank's flight record") {
  struct Case {
    std::vector<int64_t> replicas;  // of a plan; none: one process without launch
    int64_t rank;
  };
  for (const Case& c : {Case{{}, 0}, Case{{1}, 0}, Case{{1, 1}, 0}, Case{{1, 1}, 1}, Case{{2, 1}, 2}}) {
    for (const int point : {0, 40}) {
      const TemporaryFolder folder;
      CAPTURE(c.replicas, c.rank, point);
      const auto run = folder / "run";
      std::vector<std::string> words{program("runtime"), c.replicas.empty() ? "train" : "launch"};
      words = words + job(run, {});
      if (!c.replicas.empty())
        words = words + std::vector{std::string("--plan"), write_plan(folder, "p", c.replicas)};
      Process process(
          words, folder / "out", folder / "err",
          {{"PIPEWRIGHT_TEST_FAULT", std::to_string(c.rank) + ":" + std::to_string(point) + ":check"}});
      const int code = process.wait(std::chrono::seconds(120));
      const std::string error = process.error();
      CAPTURE(error);
      CHECK(code == 1);
      CHECK(times_in(error, "check failed: ") == 1);
      CHECK(times_in(error, "This is a defect of Pipewright") == 1);
      CHECK(times_in(error, ": error: ") == 1);
      const auto record = run / "flight" / ("rank-" + std::to_string(c.rank) + ".json");
      CHECK(times_in(error, record.string()) == 1);
      CHECK_NOTHROW(read_json_file(record));
    }
  }
}

}  // namespace
}  // namespace pipewright::testing

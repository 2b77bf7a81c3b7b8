// What a rank tells of its core: one line if there is nothing to read, else one four times a second.
#include <catch2/catch.hpp>
#include <vector>

#include "interference/core_features.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/train/observers.h"

namespace pipewright::testing {

TEST_CASE("core observer: a rank without a core and a GPU says so once") {
  std::vector<std::string> lines;
  CoreObserver observer(nullptr, [&](std::string line) { lines.push_back(std::move(line)); });
  REQUIRE(lines.size() == 1);
  CHECK(CoreSample::from_line(lines[0]).features.empty());
  const auto now = ActionObserver::Clock::now();
  observer.after({}, now, now + std::chrono::seconds(5));
  CHECK(lines.size() == 1);
}

TEST_CASE("core observer: a sample of all features but the work's, four times a second") {
  std::vector<std::string> lines;
  const CoreReader reader(cores_of_process().front());
  CoreObserver observer(&reader, [&](std::string line) { lines.push_back(std::move(line)); });
  const auto now = ActionObserver::Clock::now();
  observer.after({}, now, now + std::chrono::milliseconds(100));
  CHECK(lines.empty());
  for (const int milliseconds : {300, 400, 600})
    observer.after({}, now, now + std::chrono::milliseconds(milliseconds));
  REQUIRE(lines.size() == 2);
  for (const std::string& line : lines) {
    REQUIRE(CoreSample::is_line(line));
    CHECK(CoreSample::from_line(line).features.size() + 1 == core_feature_names().size());
  }
}

TEST_CASE("core reader: of a rank on the CPU it has the core that the process is bound to, if to one") {
  const auto reader = core_reader_of(at::kCPU);
  const auto core = core_of_process();
  CHECK((reader != nullptr) == core.has_value());
  if (reader) CHECK(reader->core() == core);
}

}  // namespace pipewright::testing

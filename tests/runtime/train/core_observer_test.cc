// What a rank tells of its core: one sample if there is nothing to read, else one four times a second.
#include <catch2/catch.hpp>
#include <vector>

#include "interference/core_features.h"
#include "runtime/monitor/core_sample.h"
#include "runtime/train/observers.h"

namespace pipewright::testing {

TEST_CASE("core observer: a rank without a core and a GPU says so once") {
  std::vector<CoreSample> told;
  CoreObserver observer(nullptr, [&](CoreSample sample) { told.push_back(std::move(sample)); });
  REQUIRE(told.size() == 1);
  CHECK(told[0].features.empty());
  const auto now = ActionObserver::Clock::now();
  observer.after({}, now, now + std::chrono::seconds(5));
  CHECK(told.size() == 1);
}

TEST_CASE("core observer: a sample of all features but the work's, four times a second") {
  std::vector<CoreSample> told;
  const CoreReader reader(cores_of_process().front());
  CoreObserver observer(&reader, [&](CoreSample sample) { told.push_back(std::move(sample)); });
  const auto now = ActionObserver::Clock::now();
  observer.after({}, now, now + std::chrono::milliseconds(100));
  CHECK(told.empty());
  for (const int milliseconds : {300, 400, 600})
    observer.after({}, now, now + std::chrono::milliseconds(milliseconds));
  REQUIRE(told.size() == 2);
  for (const CoreSample& sample : told) CHECK(sample.features.size() + 1 == core_feature_names().size());
}

TEST_CASE("core reader: of a rank on the CPU it has the core that the process is bound to, if to one") {
  const auto reader = core_reader_of(at::kCPU);
  const auto core = core_of_process();
  CHECK((reader != nullptr) == core.has_value());
  if (reader) CHECK(reader->core() == core);
}

}  // namespace pipewright::testing

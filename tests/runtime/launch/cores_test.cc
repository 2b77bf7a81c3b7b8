// Which cores a rank and its data workers run on. Of processes: the binding of one does not end.
#include "runtime/launch/cores.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/support/skip.h"

namespace pipewright {
namespace {

// Whether `check` holds in a process that has taken its cores as rank I of N, "I/N".
bool holds_bound(const char* pin, bool (*check)(const std::vector<int>& cores_before)) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<int> before = usable_cores();
    ::setenv(kPinVariable, pin, 1);
    take_cores_from_launcher();
    std::_Exit(check(before) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("cores: workers of a bound rank run on its share of the cores that no rank is bound to") {
  const size_t cores = usable_cores().size();
  if (cores < 2) return testing::skip("needs a host of two cores");
  CHECK(holds_bound("0/1", [](const std::vector<int>& before) {
    const DataWorkers workers = data_workers_of(0, 1, {});
    return usable_cores() == std::vector{before[0]} &&
           workers.cores == std::vector(before.begin() + 1, before.end()) &&
           workers.count == std::min<int64_t>(static_cast<int64_t>(before.size()) - 1, kMostDataWorkers) &&
           data_workers_of(7, 1, {}).count == 7;
  }));
  CHECK(holds_bound("1/2", [](const std::vector<int>& before) {
    std::vector<int> share;
    for (size_t i = 3; i < before.size(); i += 2) share.push_back(before[i]);
    const DataWorkers workers = data_workers_of(0, 1, {});
    return usable_cores() == std::vector{before[1]} && workers.cores == share && workers.count >= 1;
  }));
}

TEST_CASE("cores: a rank that is not bound shares those of its host with the other ranks") {
  Place place;
  place.world_size = 1;
  const int64_t alone = data_workers_of(0, 0, place).count;
  CHECK(alone == data_workers(0, 0).count);
  CHECK(data_workers_of(0, 0, place).cores.empty());
  place.world_size = 10'000;
  CHECK(data_workers_of(0, 0, place).count == 1);
  place.local_ranks = 1;
  CHECK(data_workers_of(0, 0, place).count == alone);
}

}  // namespace
}  // namespace pipewright

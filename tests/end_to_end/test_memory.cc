// A run's memory does not depend on how long it is.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "graph/summary.h"
#include "tests/end_to_end/jobs.h"
#include "tests/support/long.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

// The most that the process of each rank had resident.
std::vector<int64_t> peaks(const TemporaryFolder& folder, int64_t minibatches) {
  const std::string run = (folder / "run").string();
  Process job({program("runtime"), "launch", "--model", kEndlessModel, "--data",
               "synthetic-images:image=8,samples=256", "--batch-size", "2", "--minibatches",
               std::to_string(minibatches), "--plan", (folder / "plan.json").string(), "--output", run,
               "--overwrite"},
              folder / "out", folder / "err");
  const int code = job.wait(500s);
  INFO(job.error());
  REQUIRE(code == 0);
  std::vector<int64_t> bytes;
  for (const auto& rank : read_document<Summary>(folder / "run" / "summary.json").ranks)
    bytes.push_back(rank.peak_resident_bytes);
  return bytes;
}

}  // namespace

TEST_CASE("memory: a run of many more minibatches needs no more") {
  // In the first thousands what allocators keep still grows, by 3 MiB.
  const int64_t first = is_long() ? 10'000 : 5'000;
  const int64_t many = is_long() ? 100'000 : 15'000;
  for (const std::vector<int64_t>& replicas : {std::vector<int64_t>{1, 1}, {2, 1}}) {
    if (replicas[0] == 1 && !is_long()) continue;
    const TemporaryFolder folder;
    write_document(folder / "plan.json", even_plan(graph_of(kEndlessModel, 2, folder), replicas));
    std::vector<int64_t> few = peaks(folder, first), all = peaks(folder, many);
    // Runs differ by less than this, but for one in some dozens. Memory that grows with the minibatches does
    // so again, by three times as much over three times as many. With PIPEWRIGHT_LONG 35 B a minibatch is
    // more.
    constexpr int64_t kApart = 3 << 20;
    int64_t minibatches = many;
    if (!std::equal(all.begin(), all.end(), few.begin(), few.end(),
                    [](int64_t one, int64_t other) { return one - other < kApart; })) {
      few = all;
      minibatches = many + 3 * (many - first);
      all = peaks(folder, minibatches);
    }
    REQUIRE(few.size() == all.size());
    for (size_t rank = 0; rank < few.size(); ++rank) {
      INFO("rank " << rank << ": " << few[rank] << " B, then " << all[rank] << " B after " << minibatches
                   << " minibatches");
      CHECK(all[rank] - few[rank] < kApart);
    }
  }
}

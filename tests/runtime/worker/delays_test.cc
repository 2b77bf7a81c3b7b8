// Whatever the timing: plans, rules and spans that a seed makes up, random delays at every message, and the
// bits are those of the serial reference. PIPEWRIGHT_DELAY_SEEDS=200 tries so many (a minute) instead of 24.
#include <cstdlib>

#include "tests/runtime/random_pipelines.h"
#include "tests/support/delayed_transport.h"
#include "tests/support/error_of.h"

using namespace pipewright;
using namespace pipewright::testing;
using namespace std::chrono_literals;

namespace {

// More than the slowest machine under a sanitizer takes between two messages.
constexpr auto kPatience = 60s;

int64_t seed_count() {
  const char* seeds = std::getenv("PIPEWRIGHT_DELAY_SEEDS");
  return seeds ? std::atoll(seeds) : 24;
}

void train_with_delays(const std::string& transport, uint64_t seed) {
  RandomJobs jobs(seed);
  const RandomJob job = jobs.next(transport == "local" ? 24 : 6);
  const std::chrono::microseconds longest(jobs.one_of<int64_t>({0, 100, 500, 2000}));
  const int64_t size = job.plan.world_size;
  if (size == 1) {
    compare(job.model, job.plan, job.rules, job.spans, {});
    return;
  }
  const auto watchdog = std::make_shared<Watchdog>(size, kPatience);
  const auto before = [&](int64_t rank, const Action& action) { watchdog->doing(rank, to_text(action)); };
  compare(job.model, job.plan, job.rules, job.spans,
          delayed_world(make_world(transport, size), watchdog, seed, longest), 5, before);
}

}  // namespace

TEST_CASE("delays: no timing changes a bit or makes a run hang (threads)") {
  at::set_num_threads(1);
  for (int64_t seed = 0; seed < seed_count(); ++seed) {
    INFO("seed " << seed);
    train_with_delays("local", static_cast<uint64_t>(seed));
  }
}

TEST_CASE("delays: the same over Gloo and shared memory") {
  at::set_num_threads(1);
  for (int64_t seed = 0; seed < seed_count() / 4; ++seed) {
    const std::string transport = std::vector<std::string>{"gloo", "shm", "tiny-shm", "mixed"}[seed % 4];
    INFO(transport << ", seed " << seed);
    train_with_delays(transport, static_cast<uint64_t>(1000 + seed));
  }
}

TEST_CASE("delays: ranks that wait for each other are told, not hung") {
  const auto watchdog = std::make_shared<Watchdog>(2, 500ms);
  const std::string message = error_of<PeerError>([&] {
    spawn(delayed_world(make_local_world(2), watchdog, 1, 0us), [&](int64_t rank, Transport& transport) {
      watchdog->doing(rank, "RA3");
      transport.receive(at::empty({1}), 1 - rank, 7)->wait();
    });
  });
  CAPTURE(message);
  CHECK(message.find("rank 0, at RA3: receive from rank 1, tag 7") != std::string::npos);
  CHECK(message.find("rank 1, at RA3: receive from rank 0, tag 7") != std::string::npos);
}

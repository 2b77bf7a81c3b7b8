#include "models/memory/process_memory.h"

#include <ATen/ops/empty.h>
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "tests/support/skip.h"

namespace pipewright::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor written(int64_t bytes) {
  at::Tensor tensor = at::empty({bytes}, at::kByte);
  tensor.fill_(1);
  return tensor;
}

int64_t pages_brought_in() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST_CASE("What tensors give back is kept: training pages nothing in again") {
  if (!process_memory().cached_bytes) return skip("another allocator than tcmalloc is linked");
  // What a stage does minibatch after minibatch: gradients, activations and messages of some MB come and go
  // in another order each time, a few live on for a while.
  std::mt19937_64 random(1);
  std::deque<at::Tensor> in_flight;
  const auto minibatch = [&] {
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < 8; ++i)
      gradients.push_back(written(kMiB * static_cast<int64_t>(1 + random() % 8) + 64));
    in_flight.push_back(gradients[random() % gradients.size()]);
    if (in_flight.size() > 4) in_flight.pop_front();
  };
  for (int k = 0; k < 50; ++k) minibatch();
  const int64_t before = pages_brought_in();
  for (int k = 0; k < 100; ++k) minibatch();
  const int64_t pages = pages_brought_in() - before;
  // Without: about 9,000 pages a minibatch. With: what fragments now and then.
  INFO(pages << " pages in 100 minibatches of about 36 MiB");
  CHECK(pages < 100 * 90);
}

TEST_CASE("The process has what its tensors have, and what is freed is counted as kept") {
  const ProcessMemory before = process_memory();
  at::Tensor tensor = written(64 * kMiB);
  const ProcessMemory with = process_memory();
  REQUIRE(before.peak_resident_bytes);
  CHECK(*with.peak_resident_bytes >= 64 * kMiB);
  CHECK(*with.peak_resident_bytes >= *before.peak_resident_bytes);
  if (!before.cached_bytes)
    return skip("another allocator than tcmalloc is linked: it does not say what it keeps");
  tensor.reset();
  CHECK(*process_memory().cached_bytes >= *with.cached_bytes + 63 * kMiB);
}

}  // namespace
}  // namespace pipewright::testing

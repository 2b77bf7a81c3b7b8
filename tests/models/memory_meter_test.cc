#include "models/memory/memory_meter.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <thread>

namespace pipewright::testing {
namespace {

TEST_CASE("live and peak bytes follow allocations and frees") {
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  CHECK(meter.live_bytes() == 0);
  at::Tensor a = at::empty({1000});
  CHECK(meter.live_bytes() == 4000);
  {
    const at::Tensor b = at::empty({500});
    CHECK(meter.live_bytes() == 6000);
  }
  CHECK(meter.live_bytes() == 4000);
  CHECK(meter.peak_bytes() == 6000);
  meter.reset_peak();
  CHECK(meter.peak_bytes() == 4000);
  const at::Tensor view = a.view({10, 100});  // shares the storage
  a.reset();
  CHECK(meter.live_bytes() == 4000);
}

TEST_CASE("allocations belong to the tag under which they were made") {
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  meter.set_tag(3);
  at::Tensor a = at::empty({10});
  meter.set_tag(5);
  at::Tensor b = at::empty({20});
  meter.set_tag(7);
  CHECK(meter.live_bytes_by_tag() == std::map<int64_t, int64_t>{{3, 40}, {5, 80}});
  a.reset();
  CHECK(meter.live_bytes_by_tag() == std::map<int64_t, int64_t>{{5, 80}});
}

TEST_CASE("a block says what it is as long as it lives") {
  MemoryMeter meter;
  const at::Tensor before = at::empty({10});
  const MemoryMeter::Attached attached(meter);
  meter.set_tag(3);
  at::Tensor a = at::empty({10});
  const void* const place = a.storage().data();
  meter.set_tag(5);
  REQUIRE(meter.block_at(place));
  CHECK(meter.block_at(place)->bytes == 40);
  CHECK(meter.block_at(place)->tag == 3);
  CHECK_FALSE(meter.block_at(before.storage().data()));
  a.reset();
  CHECK_FALSE(meter.block_at(place));
}

TEST_CASE("an outer meter counts what happens within an inner one") {
  MemoryMeter outer;
  const MemoryMeter::Attached attached(outer);
  at::Tensor a = at::empty({10}), c;
  {
    MemoryMeter inner;
    const MemoryMeter::Attached within(inner);
    a.reset();
    const at::Tensor b = at::empty({100});
    c = at::empty({20});
    CHECK(inner.live_bytes() == 480);
    CHECK(outer.live_bytes() == 480);
    {
      const MemoryMeter::Attached again(outer);  // as an evaluation within a training
      const at::Tensor d = at::empty({1000});
      CHECK(outer.live_bytes() == 4480);
    }
  }
  CHECK(outer.live_bytes() == 80);
  CHECK(outer.peak_bytes() == 4480);
  c.reset();
  CHECK(outer.live_bytes() == 0);
}

TEST_CASE("what was allocated before attaching, or elsewhere, does not count") {
  at::Tensor before = at::empty({1000});
  MemoryMeter meter;
  {
    const MemoryMeter::Attached attached(meter);
    before.reset();
    at::Tensor elsewhere;
    std::thread([&] { elsewhere = at::empty({1000}); }).join();
    CHECK(meter.live_bytes() == 0);
  }
  const at::Tensor after = at::empty({1000});
  CHECK(meter.live_bytes() == 0);
}

TEST_CASE("an address that came back after an unseen free is counted once") {
  MemoryMeter meter;
  const MemoryMeter::Attached attached(meter);
  for (int i = 0; i < 100; ++i) {
    at::Tensor t = at::empty({1 << 16});
    std::thread([t = std::move(t)]() mutable { t.reset(); }).join();
  }
  CHECK(meter.peak_bytes() <= 100 * (int64_t{4} << 16));
  const at::Tensor last = at::empty({1 << 16});
  CHECK(meter.live_bytes() >= int64_t{4} << 16);
}

}  // namespace
}  // namespace pipewright::testing

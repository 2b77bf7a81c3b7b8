#include "runtime/probe/measurements.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/probe/link_measurements.h"
#include "runtime/probe/probe_report.h"
#include "tests/support/spawn.h"

using namespace pipewright;
using namespace pipewright::testing;

TEST_CASE("probe: what a rank says of itself is read back the same") {
  const RankFacts facts{"left", "m", {0, 3}, 8};
  CHECK(RankFacts::from_text(facts.to_text()).cores == facts.cores);
  CHECK(RankFacts::from_text(facts.to_text()).to_text() == facts.to_text());
}

TEST_CASE("probe: the table names what is noisy, and only that") {
  Measurements measurements;
  measurements.ranks = {{"a", "m", {0}, 2}, {"a", "m", {1}, 2}};
  measurements.links = {{0, 1, 1e-6, 1e9, 0.01, 0.1}};
  measurements.pairs = {{0, 1, 0, {{8, 1e-6, 0.02}}, 64, {4 << 20, 1e-3, 0.05}, {}}};
  CHECK(noise_warning(measurements).empty());
  CHECK_THAT(probe_report(measurements),
             Catch::Contains("from 64 B on left out") &&
                 Catch::Contains("half of the figures spread by 5 % or less, the worst by 10 %"));
  measurements.pairs[0].messages[0].spread = 0.31;
  CHECK_THAT(noise_warning(measurements), Catch::Contains("1 of 4 figures") &&
                                              Catch::Contains("8 B one way between ranks 0 and 1 (31 %)"));
}

TEST_CASE("probe: repetitions fit into their time, within bounds") {
  const Effort effort{0.2, 3, 200};
  CHECK(effort.repetitions(0.01) == 20);
  CHECK(effort.repetitions(1) == 3);
  CHECK(effort.repetitions(1e-6) == 200);
  CHECK(effort.repetitions(0) == 200);
}

TEST_CASE("probe: two ranks agree on every step, over every transport") {
  const std::string name = GENERATE("local", "gloo", "shm", "tiny-shm");
  INFO(name);
  struct Found {
    MessageTime small, both;
    std::optional<CoreTime> core;
    double there = 0, back = 0;
    std::optional<ProbedExchange> sum;
    bool left_out = false;
  };
  std::vector<Found> found(2);  // by rank
  spawn(make_world(name, 2), [&](int64_t rank, Transport& transport) {
    PairMeter meter(transport, 1 - rank, rank == 0);
    Found& own = found[static_cast<size_t>(rank)];
    own.small = meter.one_way(1, {0.01, 3, 20});
    own.both = meter.both_ways(1 << 16, {0.01, 3, 20});
    own.core = meter.core_time(1 << 16, {0.01, 3, 5});
    own.there = stream(transport, {0, 1}, 0.01);
    own.sum = exchange(transport, {0, 1}, 1 << 16, 0, {0.01, 3, 20});
    // Too long, says the first, and the other does not wait for it.
    own.left_out = !exchange(transport, {0, 1}, 1 << 16, rank == 0 ? 1e3 : 0, {0.01, 3, 20});
    own.back = stream(transport, {1, 0}, 0.01);
  });
  CHECK(found[0].there == 0);
  CHECK(found[1].there > 0);
  CHECK(found[0].back > 0);
  CHECK(found[1].back == 0);
  CHECK(found[0].small.bytes == 1);
  CHECK(found[0].small.seconds > 0);
  CHECK(found[0].both.seconds > 0);
  CHECK(found[0].core.has_value() == found[1].core.has_value());
  if (found[0].core) CHECK(std::isfinite(found[0].core->seconds));
  REQUIRE(found[0].sum);
  CHECK(found[0].sum->seconds > 0);
  CHECK(found[0].left_out);
  CHECK(found[1].left_out);
}

TEST_CASE("probe: a close look at a pair has sizes that ascend, and times") {
  ProbedPair found;
  int64_t held = 0;
  spawn(make_world("shm", 2), [&](int64_t rank, Transport& transport) {
    const ProbedPair pair = PairMeter(transport, 1 - rank, rank == 0).look_closely(true);
    if (rank != 0) return;
    found = pair;
    held = transport.buffered_bytes(1);
  });
  CHECK(found.from == 0);
  CHECK(found.to == 1);
  CHECK(found.buffered_bytes == held);
  int64_t before = 0;
  REQUIRE_FALSE(found.messages.empty());
  for (const MessageTime& time : found.messages) {
    CHECK(time.bytes > before);
    CHECK(time.seconds > 0);
    CHECK(time.spread >= 0);
    before = time.bytes;
  }
  CHECK(found.both_ways.seconds > 0);
  for (const CoreTime& time : found.core_times) {
    CHECK(std::isfinite(time.seconds));
    CHECK(time.error_seconds >= 0);
  }
}

#include "runtime/probe/probed_topology.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "graph/random.h"
#include "graph/statistics.h"
#include "runtime/probe/probe_report.h"

using namespace pipewright;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<RankFacts> ranks_of(const std::vector<std::string>& hosts, int64_t cores = 64) {
  std::vector<RankFacts> ranks;
  for (const std::string& host : hosts) ranks.push_back({host, "machine of " + host, {}, cores});
  return ranks;
}

// Every pair: 1 GB/s and 1 us within a host, 0.1 GB/s and 50 us between.
Measurements measured(const std::vector<std::string>& hosts, int64_t cores = 64) {
  Measurements measurements;
  measurements.ranks = ranks_of(hosts, cores);
  for (const Flow& link : probe_plan(hosts).links) {
    const bool between = between_hosts(measurements, link.from, link.to);
    measurements.links.push_back({link.from, link.to, between ? 50e-6 : 1e-6, between ? 1e8 : 1e9});
  }
  return measurements;
}
Topology probed(const std::vector<std::string>& hosts) { return topology_of(measured(hosts)); }

// A crowd's samples in one round: what each flow gets, and what each rank's threads use of a core.
void add_round(Measurements& measurements, int64_t crowd, int64_t round, bool together,
               const std::vector<Flow>& flows, double each, double core_share = 1) {
  for (const Flow& flow : flows) {
    measurements.crowds.push_back({crowd, round, together, flow.from, 0, 0.5 * core_share, 0.5});
    measurements.crowds.push_back({crowd, round, together, flow.to, each, 0.5 * core_share, 0.5});
  }
}

// All of the plan's crowds, in three rounds: one alone gets `alone`, each together `each(crowd)`.
template <typename Each>
void add_crowds(Measurements& measurements, double alone, Each each, double core_share = 1) {
  const ProbePlan plan = probe_plan(measurements.hosts());
  for (size_t c = 0; c < plan.crowds.size(); ++c) {
    for (int64_t round = 0; round < 3; ++round) {
      const auto crowd = static_cast<int64_t>(c);
      add_round(measurements, crowd, round, false, plan.crowds[c].alone, alone, core_share);
      add_round(measurements, crowd, round, true, plan.crowds[c].together, each(plan.crowds[c]), core_share);
    }
  }
}

std::vector<std::string> even_hosts(int64_t hosts, int64_t per_host) {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < hosts * per_host; ++rank)
    names.push_back("h" + std::to_string(rank / per_host));
  return names;
}

ProbedPair random_pair(KeyedRandom& random, int64_t from, int64_t to) {
  ProbedPair pair{
      from, to, static_cast<int64_t>(random.below(1 << 30)), {}, 0, {4 * kMiB, 0, random.uniform()}, {}};
  pair.both_ways.seconds = 1e-6 + random.uniform();
  int64_t bytes = 0;
  for (uint64_t i = random.below(10); i > 0; --i) {
    bytes += 1 + static_cast<int64_t>(random.below(1 << 24));
    pair.messages.push_back({bytes, random.uniform(), random.uniform()});
  }
  for (uint64_t i = random.below(5); i > 0; --i)
    pair.core_times.push_back({1 + static_cast<int64_t>(random.below(1 << 20)),
                               1e-3 * (random.uniform() - 0.3),
                               1e-4 * random.uniform() * static_cast<double>(random.below(2))});
  return pair;
}

}  // namespace

TEST_CASE("probe: one host is one level") {
  const Topology topology = probed({"a", "a", "a"});
  REQUIRE(topology.levels.size() == 1);
  CHECK(topology.levels[0].count == 3);
  CHECK(topology.levels[0].bandwidth_bytes_per_second == 1e9);
  CHECK_NOTHROW(topology.validate("topology"));
}

TEST_CASE("probe: hosts of equal size are two levels, of one rank each one level") {
  const Topology two = probed({"a", "a", "b", "b", "c", "c"});
  REQUIRE(two.levels.size() == 2);
  CHECK(two.levels[0].count == 2);
  CHECK(two.levels[1].count == 3);
  CHECK(two.levels[0].latency_seconds == 1e-6);
  CHECK(two.levels[1].latency_seconds == 50e-6);
  CHECK(two.devices.size() == 6);
  const Topology one = probed({"a", "b"});
  REQUIRE(one.levels.size() == 1);
  CHECK(one.levels[0].bandwidth_bytes_per_second == 1e8);
}

TEST_CASE("probe: hosts of unequal size, or mixed, are one level with the slowest link's figures") {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "a", "b"}, std::vector<std::string>{"a", "b", "a", "b"}}) {
    Measurements measurements = measured(hosts);
    for (const Flow& pair : probe_plan(hosts).pairs) {
      ProbedPair& close = measurements.pairs.emplace_back();
      close.from = pair.from;
      close.to = pair.to;
      close.buffered_bytes = between_hosts(measurements, pair.from, pair.to) ? 0 : 16 * kMiB;
      close.both_ways = {4 * kMiB, 0.1, 0};
    }
    measurements.sort();
    const Topology topology = topology_of(measurements);
    REQUIRE(topology.levels.size() == 1);
    CHECK(topology.levels[0].count == static_cast<int64_t>(hosts.size()));
    CHECK(topology.levels[0].bandwidth_bytes_per_second == 1e8);
    CHECK(topology.levels[0].latency_seconds == 50e-6);
    CHECK(topology.levels[0].buffered_bytes == 0);
    CHECK_FALSE(topology.levels[0].shared);
    CHECK_NOTHROW(topology.validate("topology"));
  }
}

TEST_CASE(
    "probe: a sum over ranks says what the links of their level come to when all send and add at once") {
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  const int64_t bytes = 16000000;
  // Two ranks send all of it once in all; 2 latencies. What a shorter sum says does not count.
  Measurements measurements = measured(hosts);
  measurements.exchanges = {{{0, 2}, bytes, 100e-6 + 0.16},
                            {{0, 1}, bytes, 2e-6 + 0.032},
                            {{0, 1}, bytes / 16, 1},
                            {{0, 1}, bytes * 4, 1},  // longer ones neither, but stand in the list
                            {{0, 2}, bytes / 16, 1}};
  measurements.sort();
  const Topology topology = topology_of(measurements);
  REQUIRE(topology.levels.size() == 2);
  CHECK(topology.levels[0].exchange_bytes_per_second == Approx(5e8));
  CHECK(topology.levels[1].exchange_bytes_per_second == Approx(1e8));
  // Over all, links between hosts are what a sum waits for; within a host it takes twice what its bytes do.
  CHECK(topology.exchange_factor() == Approx(1));
  CHECK(exchange_factor({topology.levels[0]}, static_cast<double>(bytes)) == Approx(2).epsilon(0.01));
  CHECK(exchange_factor(topology.levels, static_cast<double>(bytes)) == Approx(1).epsilon(0.01));
  CHECK((topology.levels[0].exchanges ==
         std::vector<MessageTime>{{bytes / 16, 1}, {bytes, 2e-6 + 0.032}, {bytes * 4, 1}}));
  CHECK_NOTHROW(topology.validate("topology"));
  CHECK(probed(hosts).exchange_factor() == 1);
}

TEST_CASE("probe: a link is shared where several pairs at once get hardly more than one") {
  for (const bool shared : {false, true}) {
    // Four hosts of four ranks: pairs within the first, and pairs of hosts.
    Measurements measurements = measured(even_hosts(4, 4));
    add_crowds(measurements, 1e9, [&](const Crowd& crowd) {
      return shared
                 ? 1e9 * static_cast<double>(crowd.alone.size()) / static_cast<double>(crowd.together.size())
                 : 9e8;
    });
    const Topology topology = topology_of(measurements);
    CHECK(topology.levels[0].shared == shared);
    CHECK(topology.levels[1].shared == shared);
    CHECK(probed_crowds(measurements).size() == 3);
  }
}

TEST_CASE("probe: two of a link each get less than six tenths of it, of 1000 random ones") {
  KeyedRandom random({1});
  for (int i = 0; i < 1000; ++i) {
    const double part = random.uniform();
    const auto pairs = static_cast<int64_t>(2 + random.below(7));
    Measurements measurements = measured(even_hosts(1, 2 * pairs));
    add_crowds(measurements, 1e9, [&](const Crowd&) { return part * 1e9; });
    const auto crowds = probed_crowds(measurements);
    REQUIRE(crowds.size() == 1);
    CHECK(crowds[0].together_bytes_per_second == Approx(part * 1e9 * static_cast<double>(pairs)));
    const bool shared = topology_of(measurements).levels[0].shared;
    CHECK(shared == (crowds[0].together_bytes_per_second < 1.2e9));
    if (shared) CHECK(part < 0.6);
    if (pairs == 2) CHECK(shared == (part < 0.6));
  }
}

TEST_CASE("probe: ranks that want more cores than there are say nothing of a link") {
  const auto shared = [](int64_t cores, double core_share) {
    Measurements measurements = measured(even_hosts(1, 4), cores);
    add_crowds(
        measurements, 1e9, [](const Crowd&) { return 5e8; }, core_share);
    return topology_of(measurements).levels[0].shared;
  };
  CHECK(shared(4, 1));           // a core for each
  CHECK_FALSE(shared(2, 0.5));   // four ranks, half of the time each: both cores are busy
  CHECK(shared(2, 0.1));         // they are not: it is the link that the ranks wait for
  CHECK_FALSE(shared(2, 0.25));  // half of both cores

  // Two hosts that are one machine have its cores together.
  Measurements measurements = measured(even_hosts(2, 2), 2);
  for (RankFacts& rank : measurements.ranks) rank.machine = "one";
  add_crowds(measurements, 1e9, [](const Crowd&) { return 5e8; });
  REQUIRE(probed_crowds(measurements).size() == 1);
  CHECK_FALSE(probed_crowds(measurements)[0].cores_had_time);
  // Ranks that are bound to a core each have as many as they are bound to.
  for (size_t rank = 0; rank < 4; ++rank) {
    measurements.ranks[rank].host_cores = 1;
    measurements.ranks[rank].cores = {static_cast<int>(rank)};
  }
  CHECK(probed_crowds(measurements)[0].cores_had_time);
}

TEST_CASE("probe: ranks that are more than the cores of their machine share these") {
  const auto cores_of = [](const std::vector<std::string>& hosts, int64_t cores) {
    return topology_of(measured(hosts, cores)).cores;
  };
  CHECK(cores_of(even_hosts(1, 3), 2) == SharedCores{3, 2});
  CHECK(cores_of(even_hosts(1, 3), 3) == SharedCores{});
  CHECK(cores_of(even_hosts(2, 4), 2) == SharedCores{4, 2});
  CHECK(cores_of({"a", "a", "a", "b"}, 2) == SharedCores{});  // not all alike
  CHECK(cores_of({"a", "b", "a", "b"}, 1) == SharedCores{});  // not in a row
  // Hosts that are one machine.
  Measurements measurements = measured(even_hosts(4, 1), 2);
  for (RankFacts& rank : measurements.ranks) rank.machine = "one";
  CHECK(topology_of(measurements).cores == SharedCores{4, 2});
}

TEST_CASE("probe: a host's link is what its ranks get together, and no less than what one gets") {
  KeyedRandom random({2});
  for (int i = 0; i < 200; ++i) {
    const auto per_host = static_cast<int64_t>(2 + random.below(4));
    Measurements measurements = measured(even_hosts(2, per_host));
    const double each = 2e8 * random.uniform();
    add_crowds(measurements, 1e8, [&](const Crowd&) { return each; });
    const Topology topology = topology_of(measurements);
    CHECK(topology.levels[1].bandwidth_bytes_per_second ==
          Approx(std::max(1e8, each * static_cast<double>(per_host))));
    CHECK(topology.levels[0].bandwidth_bytes_per_second == 1e9);
    CHECK_FALSE(topology.levels[1].shared);
  }
}

TEST_CASE(
    "probe: what ends of messages take of a core is the best line that goes through no number below zero") {
  const CoreLine exact = core_line(
      {{4096, 10e-6 + 4096e-9, 1e-6}, {65536, 10e-6 + 65536e-9, 1e-6}, {kMiB, 10e-6 + 1048576e-9, 5e-6}});
  CHECK(exact.seconds_per_message == Approx(10e-6));
  CHECK(exact.seconds_per_byte == Approx(1e-9));
  CHECK(core_line({}).seconds_per_message == 0);
  // What is hardly known hardly counts.
  const CoreLine heavy = core_line({{4096, 10e-6, 1e-9}, {65536, 10e-6, 1e-9}, {kMiB, 1, 10}});
  CHECK(heavy.seconds_per_message == Approx(10e-6).epsilon(0.01));

  KeyedRandom random({3});
  for (int i = 0; i < 2000; ++i) {
    std::vector<CoreTime> times;
    for (uint64_t n = 1 + random.below(4); n > 0; --n)
      times.push_back({1 + static_cast<int64_t>(random.below(1 << 20)), 1e-3 * (random.uniform() - 0.4),
                       1e-5 + 1e-4 * random.uniform()});
    const auto off = [&](double message, double byte) {
      double sum = 0;
      for (const CoreTime& time : times) {
        const double error = message + byte * static_cast<double>(time.bytes) - time.seconds;
        sum += error * error / (time.error_seconds * time.error_seconds);
      }
      return sum;
    };
    const CoreLine line = core_line(times);
    REQUIRE(line.seconds_per_message >= 0);
    REQUIRE(line.seconds_per_byte >= 0);
    const double best = off(line.seconds_per_message, line.seconds_per_byte);
    for (int other = 0; other < 50; ++other) {
      // Anywhere, and close by.
      const double scale = std::pow(10.0, -4 * random.uniform());
      const double message =
          std::max(0.0, line.seconds_per_message + scale * 1e-3 * (random.uniform() - 0.5));
      const double byte = std::max(0.0, line.seconds_per_byte + scale * 1e-8 * (random.uniform() - 0.5));
      REQUIRE(off(message, byte) >= best * (1 - 1e-9));
    }
  }
}

TEST_CASE("probe: whatever was measured, on whatever hosts, makes a sound document with the hosts' ranks") {
  KeyedRandom random({4});
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> hosts;
    const uint64_t names = 1 + random.below(6);
    if (random.below(2) == 0) {
      hosts = even_hosts(static_cast<int64_t>(names), static_cast<int64_t>(1 + random.below(20)));
    } else {
      for (uint64_t rank = 2 + random.below(30); rank > 0; --rank)
        hosts.push_back("h" + std::to_string(random.below(names)));
    }
    if (hosts.size() < 2) continue;
    Measurements measurements;
    measurements.ranks = ranks_of(hosts, static_cast<int64_t>(1 + random.below(64)));
    const ProbePlan plan = probe_plan(hosts);
    for (const Flow& link : plan.links)
      measurements.links.push_back({link.from, link.to, 1e-6 + random.uniform(), 1 + 1e9 * random.uniform()});
    for (const Flow& pair : plan.pairs) measurements.pairs.push_back(random_pair(random, pair.from, pair.to));
    add_crowds(measurements, 1e9 * random.uniform(), [&](const Crowd&) { return 1e9 * random.uniform(); });
    for (const auto& ranks : plan.groups)
      measurements.exchanges.push_back({ranks, 16 * kMiB, 1e-3 + random.uniform()});
    measurements.sort();
    const Topology topology = topology_of(measurements);
    CHECK_THAT(probe_report(measurements), Catch::Contains("noise: half of"));
    REQUIRE_NOTHROW(topology.validate("topology"));
    REQUIRE(topology.device_count() == static_cast<int64_t>(hosts.size()));
    for (size_t rank = 0; rank < hosts.size(); ++rank) CHECK(topology.devices[rank].host == hosts[rank]);
    for (const TopologyLevel& level : topology.levels) {
      CHECK(level.core_seconds_per_message >= 0);
      CHECK(level.core_seconds_per_byte >= 0);
      CHECK(level.both_ways_bytes_per_second > 0);
      CHECK(level.exchange_bytes_per_second > 0);
    }
    const auto document = parse_json(topology.to_json().dump(), "topology");
    JsonReader reader(document, "topology");
    CHECK(Topology::from_json(reader).levels.size() == topology.levels.size());
  }
}

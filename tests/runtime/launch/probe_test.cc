#include <catch2/catch.hpp>

#include "runtime/launch/probe.h"

using namespace pipewright;

namespace {
// Every pair: 1 GB/s and 1 us within a host, 0.1 GB/s and 50 us between.
std::vector<ProbedLink> links_of(const std::vector<std::string>& hosts) {
  std::vector<ProbedLink> links;
  for (int64_t from = 0; from < static_cast<int64_t>(hosts.size()); ++from) {
    for (int64_t to = from + 1; to < static_cast<int64_t>(hosts.size()); ++to) {
      const bool same = hosts[static_cast<size_t>(from)] == hosts[static_cast<size_t>(to)];
      links.push_back({from, to, same ? 1e-6 : 50e-6, same ? 1e9 : 1e8});
    }
  }
  return links;
}
Topology probed(const std::vector<std::string>& hosts) { return topology_of_links(hosts, links_of(hosts)); }
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
    const Topology topology = probed(hosts);
    REQUIRE(topology.levels.size() == 1);
    CHECK(topology.levels[0].count == static_cast<int64_t>(hosts.size()));
    CHECK(topology.levels[0].bandwidth_bytes_per_second == 1e8);
    CHECK(topology.levels[0].latency_seconds == 50e-6);
    CHECK_NOTHROW(topology.validate("topology"));
  }
}

TEST_CASE("probe: a sum over ranks says what the links of their level come to when all send and add at once") {
  const std::vector<std::string> hosts = {"a", "a", "b", "b"};
  const int64_t bytes = 16000000;
  // Two ranks send all of it once in all; 2 latencies.
  const std::vector<ProbedExchange> exchanges = {{{0, 1}, bytes, 2e-6 + 0.032}, {{0, 2}, bytes, 100e-6 + 0.16}};
  const Topology topology = topology_of_links(hosts, links_of(hosts), exchanges);
  REQUIRE(topology.levels.size() == 2);
  CHECK(topology.levels[0].exchange_bytes_per_second == Approx(5e8));
  CHECK(topology.levels[1].exchange_bytes_per_second == Approx(1e8));
  CHECK(topology.exchange_factor() == Approx(2));
  CHECK_NOTHROW(topology.validate("topology"));
  CHECK(probed(hosts).exchange_factor() == 1);
}

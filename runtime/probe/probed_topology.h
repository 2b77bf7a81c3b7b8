// What a probe's measurements say of the links: the topology document.
#pragma once

#include <optional>
#include <vector>

#include "graph/topology.h"
#include "runtime/probe/measurements.h"

namespace pipewright {

/// Hosts that have the same number of ranks, each rank by rank, make a level within the hosts and one between
/// them, each with the median of its links. Otherwise there is one level, with the slowest link's figures,
/// which hold for every pair, and the close look at a pair between hosts.
Topology topology_of(const Measurements& measurements);

/// What messages at once come to.
struct ProbedCrowd {
  Crowd crowd;
  double alone_bytes_per_second = 0;  ///< all flows of it together, here and below
  double alone_spread = 0;
  double together_bytes_per_second = 0;
  double together_spread = 0;
  /// The cores of every machine had time for the ranks: as many cores as ranks, or, of what cores there are,
  /// less than half was used. Else a slow-down says nothing of the link.
  bool cores_had_time = false;

  /// There is one link for all where several at a time get hardly more together than one gets alone, unless
  /// they may have waited for cores.
  enum class Verdict { kNotOneLink, kOneLink, kNotKnown };
  Verdict verdict() const;
};
/// One for each crowd of the plan that there are samples of.
std::vector<ProbedCrowd> probed_crowds(const Measurements& measurements);

/// The line a + b * bytes through what ends of messages took of a core: least squares in standard errors,
/// with a, b >= 0.
struct CoreLine {
  double seconds_per_message = 0;
  double seconds_per_byte = 0;
};
CoreLine core_line(const std::vector<CoreTime>& times);

/// As if each byte of what a rank sends in the sum took so long on its link.
double exchange_bytes_per_second(const ProbedExchange& exchange, double latency_seconds);

/// From one host to another?
bool between_hosts(const Measurements& measurements, int64_t rank, int64_t other);

}  // namespace pipewright

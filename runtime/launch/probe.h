// Measures the links between ranks: what a topology document says of them.
#pragma once

#include <string>
#include <vector>

#include "graph/topology.h"
#include "runtime/launch/place.h"

namespace pipewright {

/// Between two ranks: one way.
struct ProbedLink {
  int64_t from = 0;
  int64_t to = 0;
  double latency_seconds = 0;
  double bandwidth_bytes_per_second = 0;
};

/// A sum over ranks, as replicas make of their gradients (transport/all_reduce.h).
struct ProbedExchange {
  std::vector<int64_t> ranks;
  int64_t bytes = 0;
  double seconds = 0;
};

/// Hosts by rank, links between pairs of ranks, sums over ranks of one host or one rank of each. Where
/// several hosts have the same number of ranks, each rank by rank: a level within the hosts and one between
/// them, each with the median of its links. Otherwise one level, with the slowest link's figures, which hold
/// for every pair.
Topology topology_of_links(const std::vector<std::string>& hosts, const std::vector<ProbedLink>& links,
                           const std::vector<ProbedExchange>& exchanges = {});

struct ProbeSettings {
  std::string transport = "auto";
  double timeout_seconds = 30;
  double start_timeout_seconds = 300;
  std::string output = "topology.json";  ///< rank 0 writes it, and prints a table
};

/// One rank of at least two; every rank of the world calls it. Every pair of the first 16 ranks is measured,
/// one after the other; then sums over the first 16 ranks of a host, and over one rank of each. PeerError as
/// for training.
void probe(const Place& place, const ProbeSettings& settings);

}  // namespace pipewright

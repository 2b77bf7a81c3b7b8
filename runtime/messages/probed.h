// What ranks measure of their links, as they tell it (runtime/probe/).
#pragma once

#include <cstdint>
#include <vector>

#include "graph/topology.h"

namespace pipewright {

/// Between two ranks: one way.
struct ProbedLink {
  int64_t from = 0;
  int64_t to = 0;
  double latency_seconds = 0;
  double bandwidth_bytes_per_second = 0;
  double latency_spread = 0;  ///< spreads here are median absolute deviations over medians
  double bandwidth_spread = 0;
};

/// What one end of a message took from a rank that computed meanwhile.
struct CoreTime {
  int64_t bytes = 0;
  double seconds = 0;        ///< may come out below 0 where it is less than the noise
  double error_seconds = 0;  ///< standard error
};

/// Two ranks, looked at closely.
struct ProbedPair {
  int64_t from = 0;
  int64_t to = 0;
  int64_t buffered_bytes = 0;         ///< Transport::buffered_bytes
  std::vector<MessageTime> messages;  ///< one way, by ascending size
  int64_t left_out_bytes = 0;         ///< from this size on messages would take too long; 0: none
  MessageTime both_ways;              ///< until both have what the other sent
  std::vector<CoreTime> core_times;
};

/// One round of a Crowd's messages, alone or together, as one rank saw it.
struct CrowdSample {
  int64_t crowd = 0;  ///< index in the plan
  int64_t round = 0;
  bool together = false;
  int64_t rank = 0;
  double received_bytes_per_second = 0;  ///< 0: it sent
  double core_seconds = 0;               ///< of all its threads
  double seconds = 0;
};

/// A sum over ranks, as replicas make of their gradients (transport/all_reduce.h).
struct ProbedExchange {
  std::vector<int64_t> ranks;
  int64_t bytes = 0;
  double seconds = 0;
  double spread = 0;
};

}  // namespace pipewright

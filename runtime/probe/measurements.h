// What a probe has measured, before anything is made of it. Plain data; rank 0 has all of it in the end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/messages/probed.h"
#include "runtime/probe/probe_plan.h"

namespace pipewright {

/// As if each byte took equally long, after `latency_seconds`; of the time at most nine tenths are latency.
double bytes_per_second(double bytes, double seconds, double latency_seconds);

struct Measurements {
  std::vector<RankFacts> ranks;
  std::vector<ProbedLink> links;
  std::vector<ProbedPair> pairs;
  std::vector<CrowdSample> crowds;
  std::vector<ProbedExchange> exchanges;

  std::vector<std::string> hosts() const;  ///< by rank
  /// What a rank tells of one of them.
  void take(ProbedLink link) { links.push_back(link); }
  void take(ProbedPair pair) { pairs.push_back(std::move(pair)); }
  void take(CrowdSample sample) { crowds.push_back(sample); }
  void take(ProbedExchange exchange) { exchanges.push_back(std::move(exchange)); }
  /// By ranks, then by sizes: what ranks tell comes in any order.
  void sort();
};

}  // namespace pipewright

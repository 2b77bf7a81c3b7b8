#include "runtime/probe/measurements.h"

#include <algorithm>
#include <tuple>

namespace pipewright {

double bytes_per_second(double bytes, double seconds, double latency_seconds) {
  return bytes / std::max({seconds - latency_seconds, seconds / 10, 1e-12});
}

std::vector<std::string> Measurements::hosts() const {
  std::vector<std::string> hosts;
  for (const RankFacts& rank : ranks) hosts.push_back(rank.host);
  return hosts;
}

void Measurements::sort() {
  const auto by_ends = [](const auto& a, const auto& b) {
    return std::tie(a.from, a.to) < std::tie(b.from, b.to);
  };
  std::sort(links.begin(), links.end(), by_ends);
  std::sort(pairs.begin(), pairs.end(), by_ends);
  std::sort(crowds.begin(), crowds.end(), [](const CrowdSample& a, const CrowdSample& b) {
    return std::tie(a.crowd, a.round, a.together, a.rank) < std::tie(b.crowd, b.round, b.together, b.rank);
  });
  std::sort(exchanges.begin(), exchanges.end(), [](const ProbedExchange& a, const ProbedExchange& b) {
    return std::tie(a.ranks, a.bytes) < std::tie(b.ranks, b.bytes);
  });
}

}  // namespace pipewright

#include "runtime/checkpoint/host_ring.h"

#include <algorithm>

namespace pipewright {

HostRing::HostRing(const std::vector<std::string>& hosts) {
  std::vector<std::string> known;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto found = std::find(known.begin(), known.end(), hosts[rank]);
    host_of_.push_back(found - known.begin());
    if (found == known.end()) {
      known.push_back(hosts[rank]);
      ranks_.emplace_back();
    }
    ranks_[static_cast<size_t>(host_of_.back())].push_back(static_cast<int64_t>(rank));
  }
}

std::optional<int64_t> HostRing::keeper_of(int64_t rank) const {
  if (hosts() == 1) return std::nullopt;
  const std::vector<int64_t>& own = ranks_of(host_of(rank));
  const std::vector<int64_t>& next = ranks_of((host_of(rank) + 1) % hosts());
  const auto place = static_cast<size_t>(std::find(own.begin(), own.end(), rank) - own.begin());
  return next[place % next.size()];
}

std::vector<int64_t> HostRing::kept_by(int64_t rank) const {
  std::vector<int64_t> kept;
  for (size_t other = 0; other < host_of_.size(); ++other)
    if (keeper_of(static_cast<int64_t>(other)) == rank) kept.push_back(static_cast<int64_t>(other));
  return kept;
}

}  // namespace pipewright

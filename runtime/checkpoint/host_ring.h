// Which ranks are on one host, and who keeps copies of whose state: the hosts form a ring, in the order of
// their first ranks, and every rank has a rank of the next host keep its copy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

class HostRing {
 public:
  /// `hosts`: by rank; equal texts are one host. All ranks that are given the same come to the same.
  explicit HostRing(const std::vector<std::string>& hosts);

  int64_t hosts() const { return static_cast<int64_t>(ranks_.size()); }
  int64_t host_of(int64_t rank) const { return host_of_.at(static_cast<size_t>(rank)); }
  /// Ascending.
  const std::vector<int64_t>& ranks_of(int64_t host) const { return ranks_.at(static_cast<size_t>(host)); }
  int64_t first_of(int64_t host) const { return ranks_of(host).front(); }
  bool is_first(int64_t rank) const { return first_of(host_of(rank)) == rank; }
  /// Whose host keeps a copy of what this rank has written; nothing where there is one host only.
  std::optional<int64_t> keeper_of(int64_t rank) const;
  /// The ranks whose keeper this one is.
  std::vector<int64_t> kept_by(int64_t rank) const;

 private:
  std::vector<int64_t> host_of_;             // by rank
  std::vector<std::vector<int64_t>> ranks_;  // by host
};

}  // namespace pipewright

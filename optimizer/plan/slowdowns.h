// Ranks that take longer for the same work than when the profile was measured.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

namespace pipewright {

/// How many times as long as profiled each rank computes; 1: as long. A list of numbers is one too.
struct Slowdowns {
  std::vector<double> ranks;  ///< by rank, of all its work
  /// Of ranks on which some work is slower than other, by node of the profile. The rank's own number is then
  /// that of the stage which it has.
  std::map<int64_t, std::vector<double>> nodes;

  Slowdowns() = default;
  Slowdowns(std::vector<double> of_ranks) : ranks(std::move(of_ranks)) {}  // NOLINT(*-explicit-*)
  Slowdowns(std::initializer_list<double> of_ranks) : ranks(of_ranks) {}
  bool operator==(const Slowdowns&) const = default;
};

}  // namespace pipewright

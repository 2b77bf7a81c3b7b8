// Who measures what with whom. A function of where the ranks are, so that all of them agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

/// A probe does not look at every pair of more ranks than this, and sums over no more.
inline constexpr int64_t kMostProbedRanks = 16;

struct RankFacts {
  std::string host;
  std::string machine;     ///< equal for ranks that share cores, also where they pass for several hosts
  std::vector<int> cores;  ///< that this process may run on
  int64_t host_cores = 0;  ///< that all of the job may, as far as this rank knows

  std::string to_text() const;
  static RankFacts from_text(const std::string& text);
};

/// Else they wait for each other where they compute at the same time.
bool have_a_core_each(const RankFacts& rank, const RankFacts& other);

struct HostLayout {
  std::vector<std::string> names;           ///< of the hosts, in the order of their first ranks
  std::vector<std::vector<int64_t>> ranks;  ///< by host
  /// All have equally many ranks, and those of each are neighbours: there is a level within hosts and one
  /// between them.
  bool even = false;
};
HostLayout layout_of(const std::vector<std::string>& hosts);

/// From one rank to another.
struct Flow {
  int64_t from = 0;
  int64_t to = 0;
  auto operator<=>(const Flow&) const = default;
};

/// Messages at the same time, beside the same by fewer.
struct Crowd {
  enum class Kind {
    kPairsOfAHost,     ///< one pair of a host's ranks, and all its disjoint pairs
    kRanksOfTwoHosts,  ///< one rank of a host with one of another, and all of theirs
    kPairsOfHosts,     ///< all ranks of a host with those of another, and all disjoint pairs of hosts
  };
  Kind kind = Kind::kPairsOfAHost;
  std::vector<Flow> alone;
  std::vector<Flow> together;
  int64_t links = 0;  ///< together: as many times what is alone
};

struct ProbePlan {
  /// Pairs that stand for a level: the first within a host, the first between two.
  std::vector<Flow> pairs;
  std::vector<Flow> links;                   ///< every pair of the first ranks, and those
  std::vector<Crowd> crowds;                 ///< none where hosts are not even
  std::vector<std::vector<int64_t>> groups;  ///< for sums: ranks of the first host, one of each host
};
ProbePlan probe_plan(const std::vector<std::string>& hosts);

}  // namespace pipewright

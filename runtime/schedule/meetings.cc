#include "runtime/schedule/meetings.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace pipewright {

Meetings::Meetings(const PipelineShape& shape)
    : stages_per_rank_(shape.stages_per_rank),
      of_rank_(static_cast<size_t>(shape.ranks()), -1),
      updates_(of_rank_.size(), 0) {
  if (shape.tied.empty()) return;
  // Ranks that exchange with a third wait for each other too.
  std::vector<int64_t> joined(static_cast<size_t>(shape.groups()));
  std::iota(joined.begin(), joined.end(), 0);
  const auto first_of = [&](int64_t group) {
    while (joined[static_cast<size_t>(group)] != group) group = joined[static_cast<size_t>(group)];
    return group;
  };
  for (const std::vector<int64_t>& stages : shape.tied) {
    for (const int64_t stage : stages) {
      const int64_t a = first_of(shape.group_of(stages.front()));
      const int64_t b = first_of(shape.group_of(stage));
      joined[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
    }
  }
  std::map<int64_t, std::vector<int64_t>> members;
  for (int64_t group = 0; group < shape.groups(); ++group) members[first_of(group)].push_back(group);
  const std::vector<int64_t> first_rank = first_ranks(shape);
  for (const auto& [first, groups] : members) {
    if (groups.size() < 2) continue;  // copies on one rank need no message
    const auto meeting = static_cast<int64_t>(ranks_.size());
    ranks_.emplace_back();
    stages_.emplace_back();
    for (const int64_t group : groups) {
      for (int64_t q = 0; q < shape.replicas[static_cast<size_t>(group)]; ++q) {
        const int64_t rank = first_rank[static_cast<size_t>(group)] + q;
        of_rank_[static_cast<size_t>(rank)] = meeting;
        ranks_.back().push_back(rank);
      }
    }
    for (int64_t stage = 0; stage < shape.stages(); ++stage)
      if (first_of(shape.group_of(stage)) == first) stages_.back().push_back(stage);
  }
  arrived_.assign(ranks_.size(), 0);
}

Meetings::Reached Meetings::reach_update(int64_t rank) {
  const int64_t meeting = of_rank(rank);
  if (meeting < 0) return Reached::kGoesOn;
  if (++updates_[static_cast<size_t>(rank)] % stages_per_rank_ != 0) return Reached::kGoesOn;
  size_t& arrived = arrived_[static_cast<size_t>(meeting)];
  if (++arrived < ranks(meeting).size()) return Reached::kWaits;
  arrived = 0;
  return Reached::kAllAreThere;
}

}  // namespace pipewright

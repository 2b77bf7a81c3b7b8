#include "runtime/serial/lockstep_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/side_by_side/lockstep_pairs.h"

namespace pipewright {

GroupsByStage lockstep_groups(size_t stages, int64_t pipelines, int64_t interval, uint64_t seed,
                              const std::vector<Span>& spans) {
  const LockstepPairs pairs{seed, pipelines, interval};
  std::vector<std::vector<int64_t>> groups;
  for (const Span& span : spans) {
    std::map<int64_t, std::set<int64_t>> updates;  // by round: the pipelines that have a minibatch in it
    for (int64_t k = span.first; k < span.end(); ++k) updates[k / pipelines / interval].insert(k % pipelines);
    for (const auto& [round, members] : updates) {
      const std::vector<int64_t> order = pairs.drawn(round);
      for (size_t i = 0; i < order.size(); i += 2) {
        std::vector<int64_t> group;
        for (size_t j = i; j < std::min(i + 2, order.size()); ++j)
          if (members.count(order[j]) > 0) group.push_back(order[j]);
        std::sort(group.begin(), group.end());
        if (!group.empty()) groups.push_back(std::move(group));
      }
    }
  }
  return GroupsByStage(stages, groups);
}

}  // namespace pipewright

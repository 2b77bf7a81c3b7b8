#include "runtime/verify/lockstep_groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/side_by_side/lockstep_pairs.h"

namespace pipewright {

GroupsByStage lockstep_groups(const Plan& plan, const TrainingRules& rules, const std::vector<Span>& spans) {
  const auto pipelines = static_cast<int64_t>(plan.stages[0].ranks.size());
  const bool intervals = plan.weights == "flush" || plan.weights == "2bw";
  const int64_t interval = intervals ? plan.microbatches / pipelines : rules.gradient_accumulation;
  const LockstepPairs pairs{rules.random_seed(), pipelines, interval};
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
  return GroupsByStage(plan.stages.size(), groups);
}

}  // namespace pipewright

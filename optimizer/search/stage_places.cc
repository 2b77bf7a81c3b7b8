#include "optimizer/search/stage_places.h"

#include <algorithm>

namespace pipewright {

StagePlaces::StagePlaces(const States& states, const StageConstraints& constraints,
                         const std::vector<NodeSet>& pinned, int64_t least_stages)
    : replicas_(constraints.replicas) {
  named_ = std::max<int64_t>(static_cast<int64_t>(pinned.size()), least_stages);
  if (!replicas_.empty()) named_ = std::max(named_, replicas_.rbegin()->first + 1);
  // One more place stands for all later stages, or, where their number counts, there is one for each.
  places_ = constraints.most_stages > 0 ? constraints.most_stages : named_ + 1;
  endless_ = constraints.most_stages == 0;
  // Before a stage, just the nodes pinned to earlier ones are done.
  NodeSet all(states.states[0].done.size());
  for (const NodeSet& set : pinned) all |= set;
  NodeSet earlier(all.size());
  for (int64_t place = 0; place <= places_; ++place) {
    std::vector<char> begins(states.size());
    for (int i = 0; i < states.size(); ++i) begins[i] = (states.states[i].done & all) == earlier;
    begins_.push_back(std::move(begins));
    if (place < static_cast<int64_t>(pinned.size())) earlier |= pinned[place];
  }
}

StagePlaces StagePlaces::among(const std::vector<int>& states) const {
  StagePlaces some = *this;
  for (size_t place = 0; place < begins_.size(); ++place) {
    some.begins_[place].clear();
    for (const int state : states) some.begins_[place].push_back(begins_[place][state]);
  }
  return some;
}

int64_t StagePlaces::replicas(int64_t place) const {
  const auto given = replicas_.find(place);
  return given == replicas_.end() ? 0 : given->second;
}

}  // namespace pipewright

// What a plan puts on each link of a tree, message by message: for plans that are there. The search's own
// closed forms are in levels.h.
#pragma once

#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/network.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

/// Of equal devices on a network, schedule `1f1b`. Borrows the inputs.
class LinkLoads {
 public:
  explicit LinkLoads(const CostInputs& inputs);

  /// No run of these stages takes less for a minibatch: of each stage its compute, its update and its
  /// exchange as if that were alone, and of each link all that passes it. `ranks` by stage; replica q of a
  /// stage exchanges values with those replicas of its neighbours that the round robin gives it.
  NetworkPace pace(const std::vector<StageLoad>& loads, const std::vector<std::vector<int64_t>>& ranks) const;

 private:
  const CostInputs& inputs_;
  LinkTree tree_;
};

}  // namespace pipewright

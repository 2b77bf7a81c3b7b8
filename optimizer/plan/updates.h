// What training by a plan is like, beside its speed.
#pragma once

#include <cstdint>

#include "graph/plan.h"

namespace pipewright {

struct Updates {
  int64_t least_minibatches = 1;  ///< of one update, at the stage that takes fewest
  int64_t most_minibatches = 1;
  int64_t staleness = 0;  ///< updates between reading weights and changing them, at the worst stage
};
Updates updates_of(const Plan& plan);

}  // namespace pipewright

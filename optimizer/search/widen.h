// Which cuts to search, where there are too many for all.
#pragma once

#include "optimizer/cuts/contraction.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// A solution to a problem whose states are too many to list, and how good it could be.
struct WideSolution {
  States states;  ///< that the solution's stages go between; not all there are
  std::optional<Solution> solution;
  double bound_seconds = 0;  ///< no solution has a smaller period; 0: none was looked for
};

/// `states` of one order is where it begins: along several orders, all around the cuts that the best plan so
/// far makes, and where the bound says that better ones might be. `briefly`: one look around the best cuts,
/// and no bound.
WideSolution search_widely(const Dataflow& flow, const Problem& problem, const States& states,
                           bool memory_limited, bool briefly);

}  // namespace pipewright

// Why there is no plan, and what would do.
#pragma once

#include <string>
#include <vector>

#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// InfeasibleError, or MemoryError where more memory would do. `ties`: which cuts tied parameters forbid; ""
/// if none.
[[noreturn]] void fail_constraints(const Problem& q, const PlanRequest& request,
                                   const std::vector<NodeSet>& pinned, const std::string& ties);
[[noreturn]] void fail_infeasible(const Problem& q, const std::string& strategy, int64_t minibatch_samples,
                                  const std::string& ties);

/// Of a schedule with several stages on each rank: too few devices or cuts, or else too little memory.
[[noreturn]] void fail_interleaved(const Problem& problem, const std::string& schedule,
                                   int64_t stages_per_rank);

}  // namespace pipewright

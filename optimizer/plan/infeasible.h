// Why there is no plan, and what would do.
#pragma once

#include <string>
#include <vector>

#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// InfeasibleError, or MemoryError where more memory would do. `ties`: which cuts tied parameters forbid; ""
/// if none.
[[noreturn]] void fail_demands(const Question& q, const PlanRequest& request,
                               const std::vector<NodeSet>& pinned, const std::string& ties);
[[noreturn]] void fail_infeasible(const Question& q, const std::string& strategy, int64_t minibatch_samples,
                                  const std::string& ties);

}  // namespace pipewright

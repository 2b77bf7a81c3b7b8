// Which of the fastest plans of the pool (pool.h) is the answer.
#pragma once

#include <vector>

#include "optimizer/plan/pool.h"
#include "optimizer/plan/pricer.h"

namespace pipewright {

/// Of plans, fastest first, the one on fewest devices of those that are as fast but for a trifle; rid of
/// stages that compute less than their messages take, as far as that costs next to nothing (thin_stages.h).
PoolAnswer chosen_of(const std::vector<PoolAnswer>& fastest, const Question& question, Pricer* pricer);

}  // namespace pipewright

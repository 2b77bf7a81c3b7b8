// The fastest chain of stages as it runs, as far as a search of counted work finds it.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/counted_work.h"

namespace pipewright {

struct SolvedChain {
  Chain chain;
  std::vector<int64_t> depths;  ///< by stage
  double seconds = 0;           ///< price_seconds()
};

struct SolvedChains {
  std::vector<SolvedChain> chains;  ///< the best, and then others that were priced, fastest first
  bool capped = false;              ///< the work ended before the search did
  /// Not priced, as they are no faster, but may be about as fast as the best, likeliest first.
  std::vector<Chain> alike = {};
};

/// Plans whose times differ by less are equally fast: a profile does not know better.
inline constexpr double kEquallyFast = 1.005;

/// Steps of counted work that solve() takes with all effort.
inline constexpr double kFullEffortSteps = 3.6 * CountedWork::kStepsPerSecond;

/// The fastest of the seeds (`known`, which a caller has from an exact search or another plan; data
/// parallelism on each number of devices; equal stages, or all shapes where these are few (seeds.h); chains
/// along several rows of the devices (row_seeds.h)) and of what moves (neighbours.h) from the best of each
/// kind lead to. Chains go by what is likely, and none whose floor is
/// above the best is priced. The search ends where nothing is left to try, near `bound_seconds`, or with the
/// work that request.effort allows. None if nothing fits, or takes less than request.most_seconds. For
/// training with minibatches that overlap and a stage on each rank. The same for the same input. Borrows
/// problem and request.
SolvedChains solve(const Problem& problem, const PlanRequest& request, const std::vector<Solution>& known,
                   double bound_seconds);

}  // namespace pipewright

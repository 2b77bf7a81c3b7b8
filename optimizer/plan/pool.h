// The best plan as it runs. The search (search.h) is exact for a period that knows no waiting; this prices
// what it finds, and what lies beside it, by simulation.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/plan/pricer.h"

namespace pipewright {

struct PoolAnswer {
  Candidate candidate;
  std::vector<int64_t> depths;  ///< by stage
  double seconds = 0;
  bool capped = false;  ///< there was more to try than is worth its time
};

/// The fastest of: `found`, one device, data parallelism on each number of devices, the best stages for
/// several numbers of stages and of devices (by the bandwidth of each level, in memory with the least and
/// with the usual depths), each in every layout; then of what local moves from the best few reach: cuts,
/// replicas, merging, splitting, order. Only what the question allows. Candidates go by their floor, and none
/// whose floor is above the best is simulated. It ends where nothing is left to try, near `bound_seconds`, or
/// with the time that planning may take. Nothing if nothing fits, or takes less than request.most_seconds.
/// Question and request as Pricer takes.
std::optional<PoolAnswer> best_as_simulated(const Question& question, const PlanRequest& request,
                                            const std::vector<Answer>& found, double bound_seconds);

}  // namespace pipewright

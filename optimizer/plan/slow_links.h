// Plans where single links between ranks take longer than the topology says (PlanRequest::slow_links): how to
// stay clear of them.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

/// What one message of a minibatch from rank to rank carries under the plan: activations to the next stage,
/// or gradients to the one before; 0 of ranks that exchange neither. PlanError as evaluate_plan().
int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to);

/// Ranks on devices that no plan tells apart (renamed_ranks.h) change places one pair at a time, as long as
/// that takes time off the slowest link, or off all of them together: with the fewest swaps, the plan stays
/// clear of slow links where it can. On several levels of links nothing changes places.
Plan clear_of_slow_links(Plan plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request);

/// The plan with the most in flight, up to kMostDeeper more of each stage but the last, that is worth it with
/// these links and that the devices' memory holds; without a prediction where that is more than it had.
Plan deepened_plan(Plan plan, const Profile& profile, const Topology& topology, const PlanRequest& request);
inline constexpr int64_t kMostDeeper = 4;

}  // namespace pipewright

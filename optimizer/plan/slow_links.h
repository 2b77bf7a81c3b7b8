// Plans where single links between ranks take longer than the topology says: what such a plan takes, and how
// to stay clear of them.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"

namespace pipewright {

/// The link in one direction between two ranks: everything on it takes `slowdown` times as long as the
/// topology says, and at least so many seconds for each byte, where that was measured.
struct SlowLink {
  int64_t from = 0, to = 0;
  double slowdown = 1;
  double seconds_per_byte = 0;  ///< 0: not known
  bool operator==(const SlowLink&) const = default;
};
using SlowLinks = std::vector<SlowLink>;

/// What one message of a minibatch from rank to rank carries under the plan: activations to the next stage,
/// or gradients to the one before; 0 of ranks that exchange neither. PlanError as evaluate_plan().
int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to);

/// Seconds of a minibatch in steady state: those of evaluate_plan(), or more where a slow link holds the plan
/// up: no sender's messages take longer than its minibatches, and where stages have equally fast replicas the
/// plan is simulated with the longer messages. A slow link between replicas makes their exchange longer.
double seconds_with_slow_links(const Plan& plan, const Profile& profile, const Topology& topology,
                               const PlanRequest& request, const SlowLinks& links);

/// Ranks on devices that no plan tells apart (renamed_ranks.h) change places one pair at a time, as long as
/// that takes time off the slowest link, or off all of them together: with the fewest swaps, the plan stays
/// clear of slow links where it can. On several levels of links nothing changes places.
Plan clear_of_slow_links(Plan plan, const Profile& profile, const Topology& topology,
                         const PlanRequest& request, const SlowLinks& links);

/// The plan with the most in flight, up to kMostDeeper more of each stage but the last, that is worth it with
/// these links and that the devices' memory holds; without a prediction where that is more than it had.
Plan deepened_plan(Plan plan, const Profile& profile, const Topology& topology, const PlanRequest& request,
                   const SlowLinks& links);
inline constexpr int64_t kMostDeeper = 4;

}  // namespace pipewright

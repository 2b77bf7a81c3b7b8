// A plan again, while one is in force: for ranks and links that have become slow, or fast again.
#pragma once

#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/cost/slow_links.h"
#include "optimizer/plan/slowdowns.h"
#include "optimizer/plan/solve.h"

namespace pipewright {

/// What a plan takes with ranks as slow as they are, and what another one would.
struct Replanned {
  Slowdowns slowdowns;      ///< for which it was asked
  SlowLinks links;          ///< likewise
  double now_seconds = 0;   ///< a minibatch, of the plan in force
  double next_seconds = 0;  ///< of `plan`
  Plan plan;                ///< of the same schedule and weight rule, on all devices
  double move_seconds = 0;  ///< to bring it about: of the busiest rank
};

/// What planning again may take by default: seconds of one core.
constexpr double kReplanSeconds = 0.1;

/// Plans again: the profile's times on devices that are so many times as slow, all of their work or node by
/// node. Ranks that are all equally slow count as quiet. Of plans that are equally fast the one that moves
/// fewest bytes from `in_force`, which is one of them, with ranks renamed (renamed_ranks.h). Pure. `topology`
/// has a device for each rank.
///
/// Plans are those that solve() (solve.h) finds with the plan in force and `known` to begin with, in about
/// `budget_seconds`; for schedules that it does not know the one of make_plan(), whatever that takes. The
/// budget is in work that is counted, not in time (counted_work.h): docs/interference.md has what it takes.
///
/// `known`: further plans to choose from, of the same schedule and weight rule and on all devices; the one
/// that was best when all was quiet, say.
///
/// `most_minibatches_per_update`: as in PlanRequest; `in_force` and `known` keep it. Where no other plan
/// does, the one in force stays.
Replanned plan_again(const Profile& profile, const Topology& topology, const Plan& in_force,
                     const Slowdowns& slowdowns, const SlowLinks& links = {},
                     const std::vector<Plan>& known = {}, double budget_seconds = kReplanSeconds,
                     int64_t most_minibatches_per_update = 0);

/// The same by someone who knows how long the nodes take now and not why: the nodes of a slow rank are as
/// many times as slow as it, wherever they run (of a stage with replicas: at their pace together). So a stage
/// that moves away from the slow rank is thought to stay slow. What `Replanned` says is what is thought.
/// Links are none of its business.
Replanned plan_as_if_nodes_were_slow(const Profile& profile, const Topology& topology, const Plan& in_force,
                                     const Slowdowns& slowdowns, const SlowLinks& links = {},
                                     const std::vector<Plan>& known = {},
                                     double budget_seconds = kReplanSeconds,
                                     int64_t most_minibatches_per_update = 0);

/// What one message of a minibatch from rank to rank carries under the plan: activations to the next stage,
/// or gradients to the one before; 0 of ranks that exchange neither. PlanError as evaluate_plan().
int64_t message_bytes(const Plan& plan, const Profile& profile, int64_t from, int64_t to);

}  // namespace pipewright

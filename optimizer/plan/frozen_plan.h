// A plan for what is left to train, once the first layers are frozen: on any number of the ranks that are
// there, which a freeze policy asks for while a run goes on.
#pragma once

#include <cstdint>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

/// `plan` for a model of which `frozen.frozen` is frozen (frozen_profile()), otherwise as it is: its
/// frozen_layers, and its first stages that hold nothing else (of a schedule with one stage a rank). These
/// recompute nothing and have one minibatch in flight. `predicted` is left out.
Plan with_frozen_stages(Plan plan, const Profile& frozen);

/// What may happen to the minibatches of an update.
enum class GlobalBatch {
  kKeep,  ///< no stage makes an update of more of them than the plan in force does, at the stage with most
  kGrow,  ///< any number: with flush and 2bw as many more as there are more replicas, of the stage with most
};

/// What a freeze makes of a plan.
struct FrozenPlan {
  double now_seconds = 0;   ///< a minibatch, of with_frozen_stages(in_force): nothing but the freeze
  double next_seconds = 0;  ///< of `plan`
  double move_seconds = 0;  ///< to bring it about: of the busiest rank
  Plan plan;                ///< for frozen_layers; ranks 0..world_size - 1, the others idle
  /// Minibatches of an update of `plan`, for one of the plan in force: of their stages with most. What a
  /// learning rate is scaled by, where that is asked for.
  double update_growth = 1;
  bool changes = false;  ///< it is another plan, and faster
};

/// The fastest plan of the schedule and weight rule of `in_force` on up to all devices of the topology, with
/// `frozen_layers` layers of `measured` frozen, and their values `cached` or not; replicas as it comes. The
/// plan in force itself (with_frozen_stages) unless another is faster by more than a profile can know. Takes
/// as long as the optimizer; pure. Errors as frozen_profile() and evaluate_plan().
FrozenPlan plan_frozen(const Profile& measured, const Topology& topology, const Plan& in_force,
                       int64_t frozen_layers, bool cached, GlobalBatch global_batch);

}  // namespace pipewright

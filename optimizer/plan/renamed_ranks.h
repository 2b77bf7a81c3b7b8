// The same plan on the same devices, with other ranks in its places: where devices are alike, whoever has
// most of a stage's state already takes the stage.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "optimizer/cost/cost_model.h"

namespace pipewright {

/// Ranks of `plan` that stand on devices which no plan tells apart (CostInputs::same_kind(), on one level of
/// links) change places so that the fewest bytes move from `in_force`: weights, buffers and optimizer tensors
/// of each weight. It takes as long as before. On several levels of links nothing is renamed.
Plan renamed_for_fewest_moves(const Plan& in_force, Plan plan, const Profile& profile,
                              const CostInputs& inputs);

}  // namespace pipewright

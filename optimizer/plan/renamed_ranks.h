// The same plan on the same devices, with other ranks in its places: where devices are alike, whoever has
// most of a stage's state already takes the stage.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"

namespace pipewright {

/// Whether no plan tells the devices of two ranks apart: as fast, as large, of one class. For one level of
/// links.
bool may_change_places(const Topology& topology, int64_t a, int64_t b);

/// Ranks of `plan` that stand on devices which no plan tells apart (as fast, as large, of one class, on one
/// level of links) change places so that the fewest bytes move from `in_force`: weights, buffers and
/// optimizer_slots tensors of each weight. It takes as long as before. On several levels of links nothing is
/// renamed.
Plan renamed_for_fewest_moves(const Plan& in_force, Plan plan, const Profile& profile,
                              const Topology& topology, int64_t optimizer_slots);

}  // namespace pipewright

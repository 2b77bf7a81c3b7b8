// Constraints on certain stages: how many replicas, which layers, how many stages at most. The
// search for plans that obey, on one level of equal devices.
#pragma once

#include <optional>
#include <vector>

#include "optimizer/search/search.h"
#include "optimizer/search/stage_places.h"

namespace pipewright {

/// Nodes by the stage they are pinned to; as many entries as there are stages named by the constraints.
/// InputError for a layer that the profile has not, with the nearest, and for a node pinned to two stages.
std::vector<NodeSet> pinned_nodes(const Profile& profile, const StageConstraints& constraints);

/// search() among the plans that obey. Ties: fewest devices, fewest stages, earliest cuts. PW_CHECKs that the
/// problem is not for exactly all devices. Nothing if there is none.
std::optional<Solution> search_with_constraints(const Problem& problem, const StageConstraints& constraints,
                                                const std::vector<NodeSet>& pinned);

}  // namespace pipewright

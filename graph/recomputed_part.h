// Which nodes of a stage run forward twice (`recompute`, `recompute_ratio` of a plan): the only home of it.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"

namespace pipewright {

/// The position in stage.nodes of the first node that is recomputed; all behind it are, too. nodes.size():
/// none is. Of n nodes the last floor(ratio * n + 1/2) are, and what a set of `together` (of the graph, or
/// the profile) adds: a set that holds nodes of both parts is recomputed as a whole, with all that stands
/// behind its first node, because one of them may have written over what another one reads.
size_t first_recomputed(const Stage& stage, const std::vector<std::vector<std::string>>& together);

}  // namespace pipewright

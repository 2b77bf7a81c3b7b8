// A model as a graph, cut into the stages of a plan.
#pragma once

#include "graph/plan.h"
#include "graph/profile.h"
#include "pages/svg.h"

namespace pipewright {

/// The nodes of each stage from left to right, in an order in which they can run and in the stage's colour,
/// with who reads whose values; at each cut the bytes of a minibatch that cross it, forward. Tips have names,
/// times and bytes. Of more than 300 nodes those that follow each other without a branch are drawn as one,
/// and where that is not enough, those of a layer. Nodes that the plan does not have are left out.
Svg model_graph(const Plan& plan, const Profile& profile);

}  // namespace pipewright

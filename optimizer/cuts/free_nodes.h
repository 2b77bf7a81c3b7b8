// Nodes of no weight whose place in a plan is known beforehand: cuts that put them elsewhere are not looked
// at.
#pragma once

#include "optimizer/cost/dataflow.h"

namespace pipewright {

/// Those that stand best where they are read: a cut has one behind it unless it has the reader. Each has one
/// reader, and reads nothing but inputs of the graph and others of these.
NodeSet late_nodes(const Dataflow& flow);
/// Those that stand best where what they read is made; nobody reads them. `memory_limited`: bytes kept are a
/// weight too.
NodeSet early_nodes(const Dataflow& flow, bool memory_limited);

}  // namespace pipewright

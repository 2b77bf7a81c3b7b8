// The mean of what some replicas of a stage have learned.
#pragma once

#include "runtime/sync/replica_sync.h"

namespace pipewright {

/// Sets the replica's trained weights, of its newest version and in place, to the mean over the pipelines of
/// `group`, ascending, of which it is one: ((x0 + x1) + x2 + ...) / n. Nobody may have read that version yet.
/// All of the group call it. Alone it changes nothing. Returns the bytes this rank sent.
int64_t average_weights(Transport& transport, StageReplica& stage, const ReplicaSyncSettings& settings,
                        const std::vector<int64_t>& group);

}  // namespace pipewright

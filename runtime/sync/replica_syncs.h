// The rows of make_replica_sync(), a file each.
#pragma once

#include "runtime/sync/replica_sync.h"

namespace pipewright {

/// Gradients are summed over the replicas at every update (docs/semantics.md): weights stay equal by
/// themselves, floating buffers are averaged at a drain.
std::unique_ptr<ReplicaSync> make_all_reduce_sync(Transport& transport, StageReplica& stage,
                                                  ReplicaSyncSettings settings);

/// Nothing is exchanged while pipelines train. At a drain trained weights, floating buffers and optimizer
/// slots become the replicas' mean, summed in their order; update counts those of the replica that has most.
std::unique_ptr<ReplicaSync> make_drain_sync(Transport& transport, StageReplica& stage,
                                             ReplicaSyncSettings settings);

}  // namespace pipewright

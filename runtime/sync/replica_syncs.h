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

/// As the one before; and after each update a replica's weights become the mean of those of its group, summed
/// in the order of replicas. The group is asked for when the backward before the update has its first
/// gradient.
std::unique_ptr<ReplicaSync> make_partial_reduce_sync(Transport& transport, StageReplica& stage,
                                                      ReplicaSyncSettings settings,
                                                      const PartialReduceRules& rules);

/// As the drain's; and after each update a replica's weights become the mean of its own and of the replica's
/// that LockstepPairs names, for which it waits.
std::unique_ptr<ReplicaSync> make_lockstep_sync(Transport& transport, StageReplica& stage,
                                                ReplicaSyncSettings settings);

/// As the drain's; and beside training replicas meet, two at a time, and average what they have published of
/// their weights (WeightMeetings). What that changes comes to a replica's weights behind its next update.
std::unique_ptr<ReplicaSync> make_adpsgd_sync(Transport& transport, StageReplica& stage,
                                              ReplicaSyncSettings settings);

/// As the drain's; and a pipeline's updates are waves. What each wave has changed in the weights is summed
/// over all pipelines, while they go on; where a wave ends the pipeline waits for the sum of the one
/// `distance` before it.
std::unique_ptr<ReplicaSync> make_hetpipe_sync(Transport& transport, StageReplica& stage,
                                               ReplicaSyncSettings settings, const HetPipeRules& rules);

}  // namespace pipewright

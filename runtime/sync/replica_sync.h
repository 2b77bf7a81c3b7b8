// How the replicas of one stage are held together, as one rank does it: a class for each row of
// graph/sync_rules.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/sync_rules.h"
#include "runtime/groups/groups.h"
#include "runtime/stage/stage_replica.h"
#include "runtime/stage/streams.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// Calls come from the worker's thread; on replicas that are held equal all in the same order.
class ReplicaSync {
 public:
  virtual ~ReplicaSync() = default;
  /// In a replica's last backward of a round: its gradient of the parameter is all there, and is not touched
  /// until before_update() has returned.
  virtual void complete(size_t trainable) = 0;
  /// All of the replica's gradients of the round are there: the update may be made of them when it returns.
  /// Called where the schedule has an action for it, which is not so in a pipeline of its own. Returns the
  /// bytes this rank sent.
  virtual int64_t before_update();
  /// Where SyncFacts::averages_weights: the replica has made an update, and nobody has read its weights yet.
  /// When it returns they are what the next minibatches may read. Returns the bytes this rank sent.
  virtual int64_t after_update();
  /// The replica makes no more updates in this span. Called for all stages of a rank before at_drain() for
  /// any.
  virtual void no_more_updates() {}
  /// The pipeline has drained, at the end of a span. When it returns, weights, buffers and optimizer are
  /// equal on all replicas. Returns the bytes this rank sent.
  virtual int64_t at_drain() = 0;
};

struct ReplicaSyncSettings {
  std::vector<int64_t> ranks;  ///< of the stage's replicas in the run's plan, two or more
  StreamTags tags{1};
  OptimizerSettings optimizer = {};
  int64_t updates_in_flight = 1;  ///< of a pipeline: its minibatches in flight over its update interval
  uint64_t seed = 0;              ///< of the run
  bool early = false;             ///< sums may be made while the backward still runs
  Groups* groups = nullptr;       ///< of SyncFacts::groups_by_arrival
  /// Told at each drain that averages weights: how far the replica's trained ones were from the mean of all,
  /// as a part of the mean's Euclidean norm.
  std::function<void(double spread)> drained = {};
};

/// `sync` is a SPEC (check_sync). Borrows transport, stage and groups.
std::unique_ptr<ReplicaSync> make_replica_sync(const std::string& sync, Transport& transport,
                                               StageReplica& stage, ReplicaSyncSettings settings);

}  // namespace pipewright

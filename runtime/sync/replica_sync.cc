#include "runtime/sync/replica_sync.h"

#include "graph/error.h"
#include "runtime/sync/replica_syncs.h"

namespace pipewright {

int64_t ReplicaSync::before_update() {
  PW_CHECK(false, "a pipeline of its own has nobody to reduce gradients with");
  return 0;
}

int64_t ReplicaSync::after_update() {
  PW_CHECK(false, "weights are not averaged after an update");
  return 0;
}

std::unique_ptr<ReplicaSync> make_replica_sync(const std::string& sync, Transport& transport,
                                               StageReplica& stage, ReplicaSyncSettings settings) {
  switch (sync_facts(sync).kind) {
    case SyncKind::kAllReduce:
      return make_all_reduce_sync(transport, stage, std::move(settings));
    case SyncKind::kPartialReduce:
      return make_partial_reduce_sync(transport, stage, std::move(settings), partial_reduce_rules(sync));
    case SyncKind::kAdpsgdLockstep:
      return make_lockstep_sync(transport, stage, std::move(settings));
    case SyncKind::kAdpsgd:
      return make_adpsgd_sync(transport, stage, std::move(settings));
    case SyncKind::kHetPipe:
      return make_hetpipe_sync(transport, stage, std::move(settings), hetpipe_rules(sync));
    case SyncKind::kNone:
      return make_drain_sync(transport, stage, std::move(settings));
  }
  PW_CHECK(false, "sync " << sync);
  return nullptr;
}

}  // namespace pipewright

#include "runtime/sync/replica_sync.h"

#include "graph/error.h"
#include "runtime/sync/replica_syncs.h"

namespace pipewright {

std::unique_ptr<ReplicaSync> make_replica_sync(SyncKind kind, Transport& transport, StageReplica& stage,
                                               ReplicaSyncSettings settings) {
  switch (kind) {
    case SyncKind::kAllReduce:
      return make_all_reduce_sync(transport, stage, std::move(settings));
    case SyncKind::kNone:
      return make_drain_sync(transport, stage, std::move(settings));
  }
  PW_CHECK(false, "sync " << static_cast<int>(kind));
  return nullptr;
}

}  // namespace pipewright

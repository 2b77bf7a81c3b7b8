// How replicas are held together (`--sync`), a row each. What a row does with tensors is
// runtime/sync/replica_sync.h.
#pragma once

#include <string>
#include <vector>

namespace pipewright {

enum class SyncKind { kAllReduce, kNone };

struct SyncFacts {
  SyncKind kind;
  const char* name;
  /// The replicas of a stage make every update together and always hold equal weights. Otherwise replica i of
  /// all stages is a pipeline of its own, with its own updates, until the next drain.
  bool keeps_replicas_equal;
  const char* summary;
};
const std::vector<SyncFacts>& sync_rules();
/// InputError with the nearest name.
const SyncFacts& sync_facts(const std::string& name);
std::vector<std::string> sync_names();

}  // namespace pipewright

// How replicas are held together (`--sync SPEC`), a row each. What a row does with tensors is
// runtime/sync/replica_sync.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

enum class SyncKind { kAllReduce, kPartialReduce, kAdpsgdLockstep, kHetPipe, kNone, kAdpsgd };

struct SyncFacts {
  SyncKind kind;
  const char* name;
  /// The replicas of a stage make every update together and always hold equal weights. Otherwise replica i of
  /// all stages is a pipeline of its own, with its own updates, until the next drain.
  bool keeps_replicas_equal;
  /// After an update a replica may average its weights with others that have made one.
  bool averages_weights;
  /// With whom depends on who is ready when: rank 0 decides it, or hears of it, and writes it down.
  bool groups_by_arrival;
  const char* summary;
};
const std::vector<SyncFacts>& sync_rules();
/// Of a SPEC, such as "partial-reduce:window=10": InputError with the nearest name if there is none such.
const SyncFacts& sync_facts(const std::string& sync);
/// Pipelines ask rank 0 for what they train next, so that a fast one trains more; else they take turns. Of a
/// SPEC of a row that does not keep replicas equal; false for the others. InputError as check_sync().
bool shares_minibatches(const std::string& sync);
/// All stages of a pipeline's update average with the same pipelines, so copies of a tied parameter stay
/// equal. Of a SPEC of a row that averages weights. InputError as check_sync().
bool averages_whole_pipelines(const std::string& sync);
/// InputError for an unknown name, and for options that it does not have or whose values are out of range.
void check_sync(const std::string& sync);

/// The options of "partial-reduce" (SDPipe, PVLDB 16(9); docs/semantics.md).
struct PartialReduceRules {
  /// So many updates of a pipeline, in the mean over all, connect all of them at every stage.
  int64_t window_updates = 10;
  /// One decision for all stages of a pipeline's update, made at the last stage; else one for each stage.
  bool of_whole_pipelines = false;
  /// Whoever finds fewer waits longer the next time.
  int64_t fewest = 2;
  /// With more pipelines than this, pairs.
  int64_t pairs_above = 8;
  /// shares_minibatches(), which see.
  bool shares_minibatches = true;
  /// How long the first of a group waits for others, as a part of the time it takes for an update: to begin
  /// with, and at most.
  double wait = 0.05, most_wait = 0.1;
};
/// InputError as check_sync(). `sync` is of the kind kPartialReduce.
PartialReduceRules partial_reduce_rules(const std::string& sync);

/// The options of "hetpipe" (HetPipe, USENIX ATC 2020; docs/semantics.md).
struct HetPipeRules {
  /// A pipeline may end so many waves more than the one that has ended fewest.
  int64_t distance = 0;
  /// Updates of a pipeline in a wave; 0: as many as are in flight in it.
  int64_t wave_updates = 0;
};
/// InputError as check_sync(). `sync` is of the kind kHetPipe.
HetPipeRules hetpipe_rules(const std::string& sync);

}  // namespace pipewright

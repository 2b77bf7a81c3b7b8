// What a plan lacks in memory, and what would cure it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/topology.h"

namespace pipewright {

/// Of one rank that holds more than it may.
struct MemoryDeficit {
  int64_t stage = 0;  ///< the rank's first
  int64_t rank = 0;
  StageMemory memory;             ///< of all its stages
  int64_t recomputing_bytes = 0;  ///< what it would need if all of them recomputed
  int64_t limit_bytes = 0;
  int64_t lacking_bytes() const { return memory.total_bytes() - limit_bytes; }
};

/// What each rank holds for all its stages.
std::map<int64_t, StageMemory> memory_by_rank(const Plan& plan, const Prediction& prediction);

/// One for each stage (group of stages that share ranks) that does not fit, in order. `recomputing`: what is
/// predicted if all stages recompute.
std::vector<MemoryDeficit> memory_deficits(const Plan& plan, const Prediction& prediction,
                                           const Prediction& recomputing, const Topology& topology);

/// "16 GiB"; of devices whose limits differ "8 GiB to 16 GiB", or "8 GiB or more" where some have none.
/// `own_bytes`: by device, 0: none; empty: all have `common_bytes`.
std::string memory_text(int64_t common_bytes, const std::vector<int64_t>& own_bytes);

/// "weights 1 GiB, further versions ..."
std::string memory_by_purpose(const StageMemory& memory);

/// What to change so that `memory` fits `limit_bytes`: more memory, a shallower stage, a smaller minibatch,
/// as far as each would do. `minibatch_samples`: 0 = unknown.
std::string memory_cures(const StageMemory& memory, int64_t in_flight, int64_t limit_bytes,
                         int64_t minibatch_samples);

/// InfeasibleError unless every rank fits the topology's memory at the plan's depths: names each stage that
/// does not, what it lacks, and cures.
void check_plan_memory(const Plan& plan, const Prediction& prediction, const Prediction& recomputing,
                       const Topology& topology, int64_t minibatch_samples = 0);

}  // namespace pipewright

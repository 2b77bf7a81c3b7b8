// What the state for lost ranks takes of the memory of hosts (docs/recovery.md): it is kept there as files,
// beside what ranks hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/topology.h"

namespace pipewright {

/// So many states of so many bytes may be not whole yet at a time. Rank 0 hears within a few tenths of a
/// second that the ranks have written their parts. Where minibatches are quick the next ones are begun
/// meanwhile, so that nobody waits: as many as take no more memory than a small model may well have.
int64_t most_pending_states(int64_t bytes);
/// What a host may need that has so many bytes of each state: the whole one, those that are pending, and the
/// one before, whose files are overwritten next.
int64_t room_for_states(int64_t bytes);

/// What a stage's ranks write of one state: weights, buffers, what the optimizer keeps, and the older
/// versions that minibatches in flight read.
inline int64_t kept_bytes(const StageMemory& memory) {
  return memory.weights_bytes + memory.versions_bytes + memory.optimizer_bytes;
}

/// Of a state, what a host keeps: what its own ranks write, and with copies what the ranks of the host before
/// it do. Of a stage with replicas the first writes the weights, and each its part of the older versions.
struct KeptOnHost {
  std::string host;  ///< as the topology names it, or the number of its group of devices
  int64_t bytes = 0;
};
/// In the order of their first ranks; `prediction` is the plan's.
std::vector<KeptOnHost> kept_by_host(const Plan& plan, const Prediction& prediction, const Topology& topology,
                                     bool copies);

}  // namespace pipewright

// What a stage keeps in a device's memory, and how deep it can be there. docs/cost-model.md has the formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "runtime/schedule/rank_moments.h"

namespace pipewright {

/// Collects a stage's nodes, last first, as a backward goes through them.
class WorkspaceWalk {
 public:
  /// `gradients`: of all nodes of the stage. `sent`: what the stage sends on, which messages have room for,
  /// as they have for the gradients that come back.
  explicit WorkspaceWalk(int64_t gradients, std::vector<SentValue> sent = {})
      : gradients_(gradients), sent_(std::move(sent)) {}
  /// While the node runs, what later nodes save is not there yet (forward) or free again (backward), and in
  /// the backward the gradients of earlier ones are not there yet.
  void add(const NodeBytes& nodes, size_t node);
  StageWorkspace workspace() const;

 private:
  int64_t gradients_;
  std::vector<SentValue> sent_;
  int64_t saved_later_ = 0;
  int64_t alone_ = 0;
  std::optional<int64_t> with_gradients_;
};

/// Of the nodes of `to` that are not in `from`.
StageWorkspace stage_workspace(const NodeBytes& nodes, const std::vector<DataflowValue>& values,
                               const NodeSet& from, const NodeSet& to);

/// The smaller of two limits in bytes; 0 = none.
inline int64_t tighter_limit(int64_t a, int64_t b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

/// Bytes a device may hold: the smallest limit that the topology names; 0 = none.
int64_t memory_limit_bytes(const Topology& topology);
/// The same of the devices that the stage's ranks are.
int64_t memory_limit_bytes(const Topology& topology, const Stage& stage);
/// The same, of devices of which each may have `common_bytes` where the inputs do not name its own.
int64_t memory_limit_bytes(const CostInputs& inputs, int64_t common_bytes, const std::vector<int64_t>& ranks);

/// In-flight bound of a stage of `replicas` ranks with `later_devices` ranks in all later stages: 1 + ceil(D
/// / m).
int64_t in_flight_bound(int64_t later_devices, int64_t replicas);

/// Bytes on one rank of the stage. `untaken_gradients` (runtime/schedule/message_limits.h): where it may be
/// more than in_flight + 1. `moment`: of a rank with several stages, at that moment; default: at most.
StageMemory stage_memory(const StageLoad& load, int64_t replicas, int64_t in_flight, const CostInputs& inputs,
                         int64_t untaken_gradients = 0, const StageMoment* moment = nullptr);

/// The largest depth, at least 1 and at most `most`, with which the stage fits `memory_bytes` (0 = no limit);
/// 0 if none does.
int64_t in_flight_that_fits(const StageLoad& load, int64_t replicas, int64_t most, int64_t memory_bytes,
                            const CostInputs& inputs);

}  // namespace pipewright

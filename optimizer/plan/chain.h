// A chain of stages: what the searches of plans make, price, move and choose among.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "graph/plan.h"
#include "optimizer/plan/layouts.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Seconds of what cannot run.
inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

/// Stages along a chain of states, first stage first. Where it matters which device runs a stage
/// (CostInputs::placed()) each stage has its ranks, as many as replicas; elsewhere none has.
struct Chain {
  std::vector<FoundStage> stages;

  int64_t devices() const;
  Ranks ranks() const;
  Chain placed_on(const Ranks& ranks) const;
  /// Whether stages, devices and replicas keep the problem's constraints; says nothing of memory.
  bool allowed_by(const Problem& problem) const;
};

/// Sets what the first part of a stage that recomputes keeps: all between the two states. It counts values
/// that the stage only passes on as the part's own, so memory is no less than a plan's.
void keep_to(const States& states, int from, int kept_to, StageLoad* load);

/// How much of it a stage recomputes, as a number: 0 for nothing.
inline int64_t recomputed(const FoundStage& stage) { return stage.recompute ? 2 + stage.kept_to : 0; }

/// Of training, with a stage on each rank. Borrows the problem and the request. What it has worked out for a
/// stage it keeps: most chains have most of their stages in common.
class ChainFacts {
 public:
  ChainFacts(const Problem& problem, const PlanRequest& request);

  std::vector<StageLoad> loads(const Chain& chain);
  /// The most minibatches in flight, of a stage with this load, that its devices' memory holds, up to `most`.
  int64_t depth_that_fits(const FoundStage& stage, const StageLoad& load, int64_t most);
  /// Of an update interval, most minibatches of one replica.
  int64_t replicas_part(int64_t replicas) const;
  /// As it runs, but for its depths. What stages share of tied parameters goes to their loads.
  Plan plan(const Chain& chain, std::vector<StageLoad>* loads) const;

 private:
  using Key = std::array<int64_t, 6>;
  struct HashOfKey {
    size_t operator()(const Key& key) const;
  };
  const Problem& q_;
  const PlanRequest& request_;
  std::unordered_map<Key, StageLoad, HashOfKey> loads_;
  std::unordered_map<Key, int64_t, HashOfKey> depths_;
};

}  // namespace pipewright

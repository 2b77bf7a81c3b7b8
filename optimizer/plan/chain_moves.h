// Chains of stages on their ranks, priced by the formula and improved by local moves, for quick_plans().
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/cost/levels.h"
#include "optimizer/search/counted_work.h"
#include "optimizer/search/search.h"

namespace pipewright {

struct RankedChain {
  std::vector<FoundStage> stages;  ///< with ranks, and shares where devices differ
  double seconds = 0;              ///< by the formula; infinite if it does not fit the memory
  size_t slowest = 0;              ///< stage
};

/// For one problem of training, whose devices are ranks; borrows it and the work, of which all spend some.
class ChainMoves {
 public:
  ChainMoves(const Problem& problem, CountedWork* work);

  /// Sets shares, which stages recompute, and what it takes.
  void price(RankedChain* chain) const;

  /// The ranks without a stage get one: more replicas, or a stage split, wherever that takes least.
  void use_all(std::vector<int64_t> idle, RankedChain* chain) const;

  /// Moves that take time off the slowest stage, until none does: its cuts; a replica, or the device of two
  /// stages that are joined, that comes to it; a rank that is faster, or elsewhere, in exchange for one of
  /// its own; split, or joined with a neighbour.
  void improve(RankedChain* chain) const;

 private:
  bool worth_swapping(int64_t ours, int64_t theirs) const;

  const Problem& q_;
  const LevelCosts costs_;
  CountedWork* work_;
};

}  // namespace pipewright

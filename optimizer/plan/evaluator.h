// What chains of stages take on devices that differ: a floor and a price, with what memory allows. The
// formulas are those of optimizer/cost and optimizer/price.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/optimizer.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

struct ChainPrice {
  double seconds = 0;
  std::vector<int64_t> depths;
};

/// For one problem of training with minibatches that overlap and a stage on each rank; borrows it and the
/// request. The same for the same input.
class Evaluator {
 public:
  Evaluator(const Question& question, const PlanRequest& request);

  /// Sets which stages recompute, for a pace of `seconds`. False if some stage does not fit its memory.
  bool fit(Room room, double seconds, Chain* chain) const;
  /// With stages that recompute as they say. Sets their shares. What no run of the chain is faster than, and
  /// what is likely; infinite if it does not fit its memory.
  NetworkPace floor(Chain* chain) const;
  /// The stage that is busiest by the formula, and how long for a minibatch.
  std::pair<size_t, double> busiest(const Chain& chain) const;
  /// With the usual depths, as far as memory allows. Nothing if it does not fit.
  std::optional<ChainPrice> price(const Chain& chain) const;

 private:
  int64_t memory_of(const FoundStage& stage) const;
  /// That a stage must have room for. Where pipelines do not drain prices know no waiting on devices that
  /// differ, and so assume the usual depth.
  int64_t needed_depth(const Chain& chain, size_t s, int64_t later) const;

  const Question& q_;
  const ChainFacts facts_;
  const bool drains_;
};

}  // namespace pipewright

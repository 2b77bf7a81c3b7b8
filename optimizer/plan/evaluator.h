// What chains of stages take on devices that differ: a floor and a price, with what memory allows. The
// formulas are those of optimizer/cost and optimizer/price.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/plan/pricer.h"
#include "runtime/schedule/network_floor.h"

namespace pipewright {

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
  /// Pricer::price().
  std::optional<CandidatePrice> price(const Chain& chain, double floor_seconds, double limit) {
    return pricer_.price(chain, floor_seconds, limit);
  }
  /// Pricer::spent().
  int64_t spent() const { return pricer_.spent(); }

 private:
  int64_t memory_of(const FoundStage& stage) const;
  /// That a stage must have room for.
  int64_t needed_depth(const FoundStage& stage) const;

  const Question& q_;
  const ChainFacts facts_;
  Pricer pricer_;
  const bool drains_;
};

}  // namespace pipewright

// What chains of stages take on devices that differ: a floor and a price, with what memory allows. The
// formulas are those of optimizer/cost and optimizer/price.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/price/depths.h"
#include "runtime/schedule/network_floor.h"
#include "runtime/schedule/simulate.h"

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

  /// For which depths stages keep what their forward saved; one that does not fit so recomputes, where that
  /// is a choice: the least depths with which any plan has a pace (Little's law), the usual ones
  /// (1 + ceil(D / m)), what slow or shared links may need, one.
  enum class Room { kPaced, kUsual, kPlenty, kOne };
  static constexpr Room kRooms[] = {Room::kPaced, Room::kUsual, Room::kPlenty, Room::kOne};

  /// Sets which stages recompute, for a pace of `seconds`. False if some stage does not fit its memory.
  bool fit(Room room, double seconds, Chain* chain) const;
  /// With stages that recompute as they say. Sets their shares. What no run of the chain is faster than, and
  /// what is likely; infinite if it does not fit its memory.
  NetworkPace floor(Chain* chain) const;
  /// The stage that is busiest by the formula, and how long for a minibatch.
  std::pair<size_t, double> busiest(const Chain& chain) const;
  /// Nothing if it does not fit. What takes more than `limit` is priced as is, not with the best depths;
  /// without a limit with small ones that are as fast but for a percent.
  std::optional<ChainPrice> price(const Chain& chain, double floor_seconds, double limit);

  /// Minibatches times stages simulated so far: what the time spent grows with.
  int64_t spent() const { return spent_; }

 private:
  std::vector<StageLoad> loads_of(const Chain& chain) const;
  int64_t memory_of(const FoundStage& stage) const;
  /// That a stage must have room for. Where pipelines do not drain prices know no waiting on devices that
  /// differ, and so assume the usual depth.
  int64_t needed_depth(const Chain& chain, size_t s, int64_t later) const;
  int64_t wanted_depth(Room room, const Chain& chain, size_t s, int64_t later, double behind_seconds,
                       double seconds) const;
  /// Where pipelines drain: simulated with all the depth that fits and with the usual depths, the faster of
  /// the two, or some number above `limit`. The best depths are hardly faster.
  std::optional<ChainPrice> with_all_depth(const Plan& plan, const PlanCost& cost, double limit);
  /// Of an update interval, most minibatches of one replica.
  int64_t replicas_part(int64_t replicas) const;
  int64_t usual_depth(const Chain& chain, size_t s, int64_t later) const;

  const Question& q_;
  const PlanRequest& request_;
  const bool drains_;
  const bool limited_;
  KnownDepths known_depths_;
  int64_t spent_ = 0;
};

}  // namespace pipewright

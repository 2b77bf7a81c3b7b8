// What chains of stages take: a floor, an estimate and a price, with what memory allows. The formulas are
// those of optimizer/cost and optimizer/price.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "optimizer/plan/chain.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/price/floor.h"
#include "optimizer/price/plan_cost.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct ChainPrice {
  double seconds = 0;           ///< price_seconds()
  std::vector<int64_t> depths;  ///< by stage
};

/// For one problem of training with minibatches that overlap and a stage on each rank; borrows it and the
/// request. The same for the same input.
class Evaluator {
 public:
  Evaluator(const Problem& problem, const PlanRequest& request);

  /// The chain with stages that recompute so that it runs as fast as it can by Little's law, and so that it
  /// would at longer paces, where fewer do. None if some stage does not fit its memory.
  std::vector<Chain> recomputing(Chain chain);
  /// With stages that recompute as they say. Sets their shares. What no run of the chain is faster than, and
  /// what is likely; infinite if it does not fit its memory.
  NetworkPace floor(Chain* chain);
  /// The stage that is busiest by the formula, or two between which a slow link is busier.
  struct Busiest {
    std::vector<size_t> stages;
    double seconds = 0;  ///< of a minibatch
  };
  Busiest busiest(const Chain& chain);
  /// With depths chosen, simulated. Nothing if it does not fit. What takes more than `limit` is priced as it
  /// is, not with the best depths, and so is what would have `most_spent` simulated.
  std::optional<ChainPrice> price(const Chain& chain, double floor_seconds, double limit,
                                  int64_t most_spent = std::numeric_limits<int64_t>::max());

  /// Minibatches times stages simulated so far: what the time spent grows with.
  int64_t spent() const { return spent_; }

 private:
  /// Of a stage that keeps what it computes, [0], and of one that recomputes, [1].
  struct StageRoom {
    double between = 0;    ///< seconds of messages to the next stage and back
    double trip[2] = {};   ///< seconds that earlier stages wait for, of one minibatch on a rank
    double busy[2] = {};   ///< seconds of a minibatch, all replicas together
    int64_t most[2] = {};  ///< in flight, by memory
    int64_t needed = 1;    ///< in flight
    bool frozen = false;
    StageLoad load;  ///< recomputing
  };
  std::vector<StageRoom> rooms_of(const Chain& chain);
  /// Sets which stages recompute: those that must for the pace. False if it is too short. Updates of a stage
  /// wait for the last of its replicas, which begin one after the other, or all at once (`abreast`).
  /// `keeps`: a stage that recomputes keeps as much of what it computes as leaves room for the usual depth,
  /// where it has room for that at all: on links that others use the least one is mostly too little.
  bool runs_within(double seconds, bool abreast, const std::vector<StageRoom>& rooms, bool keeps,
                   Chain* chain);
  /// How far a stage that recomputes can keep what it computes with so many in flight; -1: not at all.
  int kept_with(int64_t depth, const FoundStage& stage, const StageRoom& room);
  /// In flight, that a stage must have room for.
  int64_t needed_depth(const FoundStage& stage) const;
  double trip_seconds(const FloorStage& stage, const StageLoad& load) const;
  double busy_seconds(const FoundStage& stage, const StageLoad& load) const;
  /// Of a chain whose loads recompute as they say, and which has room for a minibatch.
  NetworkPace pace_of(const Chain& chain, const std::vector<StageLoad>& loads);
  /// Little's law the other way round: with no room for more in flight, so long at least.
  void wait_for_room(const Chain& chain, const std::vector<FloorStage>& stages,
                     const std::vector<StageLoad>& loads, NetworkPace* pace);
  /// Where pipelines drain: simulated with all the depth that fits and with the usual depths, the faster of
  /// the two, or some number above `limit`. The best depths are hardly faster.
  std::optional<ChainPrice> with_all_depth(const Chain& chain, const Plan& plan, const PlanCost& cost,
                                           double limit);

  const Problem& q_;
  const PlanRequest& request_;
  ChainFacts facts_;
  const Floor floor_;
  const bool drains_;
  const bool coupled_;  // no stage runs further ahead than those before it (usable_in_flight())
  const bool bounds_crossing_;
  /// Of a state's nodes by their place in the profile.
  struct FirstNodes {
    size_t count = 0;
    size_t all_before = 0;  ///< this place all are in it
    size_t end = 0;         ///< from this place on none is
  };
  std::vector<FirstNodes> first_nodes_;  // by state, where stages may recompute
  std::vector<int> prefixes_;  // by number of nodes: the state of the profile's first; -1: there is none
  KnownDepths known_depths_;
  int64_t spent_ = 0;
};

}  // namespace pipewright

// What candidates take when they run: depths chosen, simulated. For the pool of plans (pool.h).
#pragma once

#include <optional>
#include <vector>

#include "optimizer/plan/candidate.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/price/depths.h"
#include "optimizer/price/floor.h"
#include "optimizer/search/search.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

struct CandidatePrice {
  double seconds = 0;
  std::vector<int64_t> depths;
};

/// For a problem of training with minibatches that overlap and a stage on each rank; borrows it and the
/// request. The same for the same input.
class Pricer {
 public:
  Pricer(const Question& question, const PlanRequest& request);

  /// False where the question is of another kind: devices that differ, ranks of several stages, one minibatch
  /// at a time, a formula that is not simulated.
  static bool takes(const Question& question, const PlanRequest& request);

  /// What no run of the candidate is faster than, and what is likely; infinite if it does not fit its memory.
  /// Decides which stages recompute, for a pace of `seconds`. On equal devices.
  NetworkPace pace(Candidate* candidate, double seconds);
  /// The same of a chain whose loads recompute as they say, and which has room for a minibatch.
  NetworkPace pace(const Chain& chain, const std::vector<StageLoad>& loads) const;

  /// Nothing if it does not fit. What takes more than `limit` is priced as is, not with the best depths.
  std::optional<CandidatePrice> price(const Chain& chain, double floor_seconds, double limit);

  /// Minibatches times stages simulated so far: what the time spent grows with.
  int64_t spent() const { return spent_; }
  bool placed() const { return floor_.on_network(); }

 private:
  int64_t memory_of(const FoundStage& stage) const;
  /// Little's law the other way round: with no room for more in flight, so long at least.
  void wait_for_room(const std::vector<FloorStage>& stages, const std::vector<int64_t>& memories,
                     const std::vector<StageLoad>& loads, NetworkPace* pace) const;
  /// Where pipelines drain: simulated with all the depth that fits and with the usual depths, the faster of
  /// the two, or some number above `limit`. The best depths are hardly faster.
  std::optional<CandidatePrice> with_all_depth(const Chain& chain, const Plan& plan, const PlanCost& cost,
                                               double limit);

  const Question& q_;
  const PlanRequest& request_;
  const bool drains_;
  const ChainFacts facts_;
  const Floor floor_;
  KnownDepths known_depths_;
  int64_t spent_ = 0;
};

}  // namespace pipewright

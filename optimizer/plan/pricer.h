// What candidates take when they run: depths chosen, simulated. For the pool of plans (pool.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "optimizer/cost/link_loads.h"
#include "optimizer/plan/layouts.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/search.h"

namespace pipewright {

/// Stages along a chain of states. `ranks` of each stage are set where devices are placed.
struct Candidate {
  std::vector<FoundStage> stages;
  /// For which depths a stage recomputes where it has no room for them otherwise: those without which no plan
  /// is as fast as the best known; the usual ones, 1 + ceil(D / m); what slow or shared links may need; one.
  enum class Room { kPaced, kUsual, kPlenty, kOne };
  Room room = Room::kPaced;
  int64_t devices() const;
  Ranks ranks() const;
  Candidate placed_on(const Ranks& ranks) const;
  /// What tells it from others, whose stages stand elsewhere or are others.
  std::vector<int64_t> key(const std::vector<TopologyLevel>& levels) const;
  /// Stages, devices and replicas are what the question is about.
  bool allowed_by(const Question& question) const;
};

struct CandidatePrice {
  double seconds = 0;
  std::vector<int64_t> depths;
};

/// For a question of training without drain on equal devices; borrows it and the request. The same for the
/// same input.
class Pricer {
 public:
  Pricer(const Question& question, const PlanRequest& request);

  /// False where the question is of another kind: devices that differ, a schedule that drains, a formula that
  /// is not simulated.
  static bool takes(const Question& question, const PlanRequest& request);

  /// No run of the candidate is faster; infinite if it does not fit its memory. Decides which stages
  /// recompute, for a pace of `seconds`.
  double floor_seconds(Candidate* candidate, double seconds);

  /// Nothing if it does not fit. What takes more than `limit` is priced as is, not with the best depths.
  std::optional<CandidatePrice> price(const Candidate& candidate, double floor_seconds, double limit);

  /// Minibatches times stages simulated so far: what the time spent grows with.
  int64_t spent() const { return spent_; }
  bool placed() const { return loads_ != nullptr; }

 private:
  std::vector<StageLoad> loads_of(const Candidate& candidate) const;
  const Question& q_;
  const PlanRequest& request_;
  std::unique_ptr<LinkLoads> loads_;  // of the network
  int64_t spent_ = 0;
};

}  // namespace pipewright

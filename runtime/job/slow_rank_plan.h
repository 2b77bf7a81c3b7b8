// The policy `slow`: a plan that is kept ready for the time in which a rank is slow.
#pragma once

#include <optional>
#include <string>

#include "runtime/job/adapt.h"

namespace pipewright {

class SlowRankPlan : public AdaptPolicy {
 public:
  /// `plan`, of `file`, is in force while `rank` (absent: any) computes at least `factor` times as long as
  /// when the run was quiet, else the run's first plan.
  SlowRankPlan(std::string file, Plan plan, std::optional<int64_t> rank, double factor)
      : file_(std::move(file)), plan_(std::move(plan)), rank_(rank), factor_(factor) {}
  bool decides() const override { return true; }
  std::optional<PlanDecision> decide(const RunNow& now) override;

 private:
  const std::string file_;
  const Plan plan_;
  const std::optional<int64_t> rank_;
  const double factor_;
  std::optional<bool> slow_;  // what the plan in force is for; none: not looked yet
};

/// "slow:plan=B.json,factor=1.5,rank=2".
std::unique_ptr<AdaptPolicy> slow_rank_plan(SpecOptions& options);

}  // namespace pipewright

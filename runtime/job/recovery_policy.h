// What `--on-loss` means: whether a job that has lost a rank goes on, and under which plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/run.h"
#include "graph/topology.h"
#include "runtime/coordinator/attempts.h"

namespace pipewright {

class RecoveryPolicy {
 public:
  /// Of "end", "restart" and "continue:profile=FILE,topology=FILE,bandwidth=B"; files are read. InputError
  /// with the nearest name for an unknown one, and for options that it does not have.
  explicit RecoveryPolicy(const std::string& on_loss);

  OnLoss on_loss() const { return on_loss_; }
  /// The best plan for so many ranks, like `first` in schedule, weight rule and what an update is made of; on
  /// as few of them as it takes. PlanError or InfeasibleError where there is none, and unless the profile is
  /// of the plan's model. kContinue only.
  Plan plan_for(int64_t ranks, const Plan& first) const;

 private:
  OnLoss on_loss_ = OnLoss::kEnd;
  std::optional<Profile> profile_;
  std::optional<Topology> topology_;
  double bandwidth_bytes_per_second_ = 0;
};

/// Cheap: the name alone. `said`: where that stands, for messages.
OnLoss on_loss_of(const Run& run, const std::string& said = "--on-loss");

}  // namespace pipewright

// The policy `freeze`: layers are frozen from the front while the run trains (docs/freezing.md), and the plan
// follows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/frozen_plan.h"
#include "runtime/job/adapt.h"
#include "runtime/job/freeze_rules.h"

namespace pipewright {

/// How the plan follows what is frozen.
struct FreezePlanning {
  Profile profile;                   ///< of the run's model and batch size
  std::optional<Topology> topology;  ///< a device for each rank; none: links of the bandwidth
  double bandwidth_bytes_per_second = 0;
  bool grows = true;  ///< onto all ranks that were started; otherwise onto as many as the plan in force has
  GlobalBatch global_batch = GlobalBatch::kKeep;
  bool scales_learning_rate = false;  ///< by what an update takes more
  bool halves = false;                ///< by PipeTransformer's own rule (halving_plan) instead
};

/// Asks its rule at the end of each epoch, or of every so many minibatches, and, where it freezes layers, for
/// the best plan for what is left to train. That takes over if it saves more until the end of the run than
/// changing costs; otherwise the plan in force goes on. Says on standard error what it decided and by which
/// numbers.
class FreezePolicy : public AdaptPolicy {
 public:
  /// `every_minibatches`: 0 = at the ends of epochs alone. Without `planning` the plan stays.
  FreezePolicy(std::string rule_name, std::unique_ptr<FreezeRule> rule, int64_t every_minibatches,
               std::optional<FreezePlanning> planning = {})
      : rule_name_(std::move(rule_name)),
        rule_(std::move(rule)),
        every_minibatches_(every_minibatches),
        planning_(std::move(planning)) {}
  bool decides() const override { return true; }
  std::optional<int64_t> decides_every() const override { return every_minibatches_; }
  bool reads_gradients() const override { return rule_->reads_norms(); }
  std::optional<PlanDecision> decide_drained(const DrainedNow& now) override;

 private:
  void follow(const DrainedNow& now, PlanDecision& decision) const;
  void follow_by_halving(const DrainedNow& now, PlanDecision& decision) const;

  const std::string rule_name_;
  const std::unique_ptr<FreezeRule> rule_;
  const int64_t every_minibatches_;
  const std::optional<FreezePlanning> planning_;
  std::vector<double> norms_before_;
};

/// Layers that are frozen at minibatches that are known beforehand.
class ManualFreeze : public AdaptPolicy {
 public:
  explicit ManualFreeze(std::vector<std::pair<int64_t, int64_t>> layers) : layers_(std::move(layers)) {}
  PlannedChanges known() override;

 private:
  const std::vector<std::pair<int64_t, int64_t>> layers_;  // minibatch, layers
};

/// "3@400+6@800" as (minibatch, layers), by rising minibatch. InputError, naming `options`' SPEC.
std::vector<std::pair<int64_t, int64_t>> parse_freeze_points(const std::string& text,
                                                             const SpecOptions& options);

/// "freeze:rule=alpha,alpha=0.333,every=epoch" and its other options. InputError.
std::unique_ptr<AdaptPolicy> freezing(SpecOptions& options);

}  // namespace pipewright

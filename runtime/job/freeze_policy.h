// The policy `freeze`: layers are frozen from the front while the run trains (docs/freezing.md).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/job/adapt.h"
#include "runtime/job/freeze_rules.h"

namespace pipewright {

/// Asks its rule at the end of each epoch, or of every so many minibatches, and says on standard error what
/// it decided and by which numbers.
class FreezePolicy : public AdaptPolicy {
 public:
  /// `every_minibatches`: 0 = at the ends of epochs alone.
  FreezePolicy(std::string rule_name, std::unique_ptr<FreezeRule> rule, int64_t every_minibatches)
      : rule_name_(std::move(rule_name)), rule_(std::move(rule)), every_minibatches_(every_minibatches) {}
  bool decides() const override { return true; }
  std::optional<int64_t> decides_every() const override { return every_minibatches_; }
  bool reads_gradients() const override { return rule_->reads_norms(); }
  std::optional<PlanDecision> decide_drained(const DrainedNow& now) override;

 private:
  const std::string rule_name_;
  const std::unique_ptr<FreezeRule> rule_;
  const int64_t every_minibatches_;
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

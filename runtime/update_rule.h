// Optimizer rules: out of place in the weights, in place in their own slots.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/run.h"

namespace pipewright {

/// One stage's rule with its slots. `step` returns the next weights as fresh leaves; the old ones are not
/// touched. The arithmetic is that of torch.optim's single-tensor implementations, in the order written
/// beside each rule.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Gradients are consumed (may be overwritten). One per weight; weights and gradients have equal shapes.
  virtual std::vector<at::Tensor> step(const std::vector<at::Tensor>& weights,
                                       std::vector<at::Tensor> gradients, double learning_rate) = 0;
};

struct UpdateRuleRow {
  const char* name;
  std::unique_ptr<UpdateRule> (*make)(const OptimizerSettings&);
};
/// "sgd", "adam", "adamw".
const std::vector<UpdateRuleRow>& update_rules();
/// InputError with the nearest name for an unknown rule.
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerSettings& settings);

/// Tensors that the rule keeps per parameter: 0 plain SGD, 1 with momentum, 2 Adam.
int64_t optimizer_slots(const OptimizerSettings& settings);

/// The rate for the update whose first minibatch is `minibatch`: warm-up, then the policy.
double learning_rate_at(const LearningRatePolicy& policy, double base, int64_t minibatch,
                        int64_t minibatches_per_epoch, int64_t total_minibatches);

}  // namespace pipewright

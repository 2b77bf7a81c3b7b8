// What the run document names of an update: rules and learning-rate policies, a row each. The arithmetic of
// the rules over tensors is runtime/update/update_rule.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/run.h"

namespace pipewright {

enum class UpdateRuleKind { kSgd, kAdam, kAdamW };

struct UpdateRuleFacts {
  UpdateRuleKind kind;
  const char* name;
  /// Names of the tensors that the rule keeps for each weight (torch.optim's names).
  std::vector<std::string> (*slots)(const OptimizerSettings& settings);
};
const std::vector<UpdateRuleFacts>& update_rules();
/// InputError with the nearest name.
const UpdateRuleFacts& update_rule_facts(const std::string& name);
std::vector<std::string> update_rule_names();
/// Of the rule that the settings name.
std::vector<std::string> slot_names(const OptimizerSettings& settings);

/// Where an update stands in its run. The numbers are of minibatches.
struct LearningRatePosition {
  int64_t minibatch = 0;  ///< the first of the update, after `every`
  double epoch = 0;       ///< with its fraction
  double progress = 0;    ///< 0 at the start of the run, 1 at its end
};

struct LearningRateRow {
  const char* name;
  /// By what the base rate is multiplied, after the warm-up.
  double (*factor)(const LearningRatePolicy& policy, const LearningRatePosition& at);
};
const std::vector<LearningRateRow>& learning_rate_policies();
std::vector<std::string> learning_rate_policy_names();

/// The rate, before any scale, for the update whose first minibatch is `minibatch`: warm-up, then the policy.
double learning_rate_at(const LearningRatePolicy& policy, double base, int64_t minibatch,
                        int64_t minibatches_per_epoch, int64_t total_minibatches);

}  // namespace pipewright

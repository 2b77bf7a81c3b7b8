#include "graph/update_rules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/rows.h"

namespace pipewright {
namespace {

std::vector<std::string> momentum_if_any(const OptimizerSettings& settings) {
  if (settings.momentum == 0) return {};
  return {"momentum"};
}
std::vector<std::string> two_moments(const OptimizerSettings&) { return {"exp_avg", "exp_avg_sq"}; }

using Policy = LearningRatePolicy;
using At = LearningRatePosition;

double constant(const Policy&, const At&) { return 1; }
double step(const Policy& policy, const At& at) {
  if (policy.step_minibatches > 0)
    return std::pow(policy.gamma, static_cast<double>(at.minibatch / policy.step_minibatches));
  return std::pow(policy.gamma, std::floor(at.epoch / policy.step_epochs));
}
double polynomial(const Policy& policy, const At& at) { return std::pow(1 - at.progress, policy.power); }
double exponential(const Policy& policy, const At& at) { return std::pow(policy.gamma, at.progress); }
double cosine(const Policy&, const At& at) { return 0.5 * (1 + std::cos(std::numbers::pi * at.progress)); }

}  // namespace

const std::vector<UpdateRuleFacts>& update_rules() {
  static const std::vector<UpdateRuleFacts> rows = {{UpdateRuleKind::kSgd, "sgd", momentum_if_any},
                                                    {UpdateRuleKind::kAdam, "adam", two_moments},
                                                    {UpdateRuleKind::kAdamW, "adamw", two_moments}};
  return rows;
}

std::vector<std::string> update_rule_names() { return names_of(update_rules()); }

const UpdateRuleFacts& update_rule_facts(const std::string& name) {
  return row_named(update_rules(), "optimizer", name);
}

std::vector<std::string> slot_names(const OptimizerSettings& settings) {
  return update_rule_facts(settings.name).slots(settings);
}

const std::vector<LearningRateRow>& learning_rate_policies() {
  static const std::vector<LearningRateRow> rows = {{"constant", constant},
                                                    {"step", step},
                                                    {"polynomial", polynomial},
                                                    {"exponential", exponential},
                                                    {"cosine", cosine}};
  return rows;
}

std::vector<std::string> learning_rate_policy_names() { return names_of(learning_rate_policies()); }

double learning_rate_at(const LearningRatePolicy& policy, double base, int64_t minibatch,
                        int64_t minibatches_per_epoch, int64_t total_minibatches) {
  if (minibatch < policy.warmup_minibatches)
    return base * static_cast<double>(minibatch + 1) / static_cast<double>(policy.warmup_minibatches);
  const int64_t of_epoch = std::max<int64_t>(1, minibatches_per_epoch);
  if (policy.every == "epoch") minibatch -= minibatch % of_epoch;
  const auto at = static_cast<double>(minibatch);
  const LearningRatePosition position{minibatch, at / static_cast<double>(of_epoch),
                                      at / static_cast<double>(std::max<int64_t>(1, total_minibatches))};
  for (const LearningRateRow& row : learning_rate_policies())
    if (policy.name == row.name) return base * row.factor(policy, position);
  throw InputError("learning_rate_policy: '" + policy.name + "' is not known" +
                   suggestion(policy.name, learning_rate_policy_names()));
}

}  // namespace pipewright

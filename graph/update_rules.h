// What the run document names of an update: its rules, a row each. Their arithmetic over tensors is
// runtime/update/update_rule.h, their learning rate graph/learning_rate.h.
#pragma once

#include <string>
#include <vector>

#include "graph/pipeline_rules.h"
#include "graph/run.h"

namespace pipewright {

enum class UpdateRuleKind { kSgd, kAdam, kAdamW, kNAdam, kLion, kMuon };

struct UpdateRuleFacts {
  UpdateRuleKind kind;
  const char* name;
  /// Names of the tensors that the rule keeps for each weight (torch.optim's names).
  std::vector<std::string> (*slots)(const OptimizerSettings& settings);
  /// Parameters of two dimensions are stepped as a whole, unless a group says otherwise, and keep the first
  /// of these slots only.
  bool matrices = false;
  /// Its slots, where it has any, say which way it goes on: UpdateRule::predict().
  bool predicts = false;
};
const std::vector<UpdateRuleFacts>& update_rules();
/// InputError with the nearest name.
const UpdateRuleFacts& update_rule_facts(const std::string& name);
std::vector<std::string> update_rule_names();
/// Of the rule that the settings name, then of its correction of delays.
std::vector<std::string> slot_names(const OptimizerSettings& settings);
/// PlanError where the weight rule predicts weights and the settings' rule does not.
void check_prediction(const OptimizerSettings& settings, WeightRule weights);
/// Whether the rule steps a parameter of so many dimensions as a whole.
bool steps_as_matrix(const OptimizerSettings& settings, const ParameterSettings& parameter,
                     size_t dimensions);
/// The shape of slot `slot` (by number) of a parameter: its own, or that of no elements where none is kept.
std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot, const std::string& parameter,
                                std::vector<int64_t> shape);

}  // namespace pipewright

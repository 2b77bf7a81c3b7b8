// What the run document names of an update: its rules, a row each. Their arithmetic over tensors is
// runtime/update/update_rule.h, their learning rate graph/learning_rate.h.
#pragma once

#include <string>
#include <vector>

#include "graph/run.h"

namespace pipewright {

enum class UpdateRuleKind { kSgd, kAdam, kAdamW, kNAdam, kLion };

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

}  // namespace pipewright

#include "graph/update_rules.h"

#include "graph/rows.h"

namespace pipewright {
namespace {

std::vector<std::string> momentum_if_any(const OptimizerSettings& settings) {
  if (settings.momentum == 0) return {};
  return {"momentum"};
}
std::vector<std::string> one_moment(const OptimizerSettings&) { return {"exp_avg"}; }
std::vector<std::string> two_moments(const OptimizerSettings&) { return {"exp_avg", "exp_avg_sq"}; }

}  // namespace

const std::vector<UpdateRuleFacts>& update_rules() {
  static const std::vector<UpdateRuleFacts> rows = {{UpdateRuleKind::kSgd, "sgd", momentum_if_any},
                                                    {UpdateRuleKind::kAdam, "adam", two_moments},
                                                    {UpdateRuleKind::kAdamW, "adamw", two_moments},
                                                    {UpdateRuleKind::kNAdam, "nadam", two_moments},
                                                    {UpdateRuleKind::kLion, "lion", one_moment}};
  return rows;
}

std::vector<std::string> update_rule_names() { return names_of(update_rules()); }

const UpdateRuleFacts& update_rule_facts(const std::string& name) {
  return row_named(update_rules(), "optimizer", name);
}

std::vector<std::string> slot_names(const OptimizerSettings& settings) {
  return update_rule_facts(settings.name).slots(settings);
}

}  // namespace pipewright

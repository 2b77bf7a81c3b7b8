#include "graph/update_rules.h"

#include "graph/delay_corrections.h"
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
  static const std::vector<UpdateRuleFacts> rows = {
      {UpdateRuleKind::kSgd, "sgd", momentum_if_any}, {UpdateRuleKind::kAdam, "adam", two_moments},
      {UpdateRuleKind::kAdamW, "adamw", two_moments}, {UpdateRuleKind::kNAdam, "nadam", two_moments},
      {UpdateRuleKind::kLion, "lion", one_moment},    {UpdateRuleKind::kMuon, "muon", two_moments, true}};
  return rows;
}

std::vector<std::string> update_rule_names() { return names_of(update_rules()); }

const UpdateRuleFacts& update_rule_facts(const std::string& name) {
  return row_named(update_rules(), "optimizer", name);
}

std::vector<std::string> slot_names(const OptimizerSettings& settings) {
  std::vector<std::string> names = update_rule_facts(settings.name).slots(settings);
  if (const char* slot = delay_correction_facts(settings.delay_correction).slot) names.emplace_back(slot);
  return names;
}

bool steps_as_matrix(const OptimizerSettings& settings, const ParameterSettings& parameter,
                     size_t dimensions) {
  return update_rule_facts(settings.name).matrices && parameter.matrix && dimensions == 2;
}

std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot, const std::string& parameter,
                                std::vector<int64_t> shape) {
  const UpdateRuleFacts& rule = update_rule_facts(settings.name);
  // Expressions of groups are only matched where it matters.
  if (slot == 0 || !rule.matrices || slot >= rule.slots(settings).size()) return shape;
  const ParameterSettings own = parameter_settings(settings, {parameter}).front();
  if (steps_as_matrix(settings, own, shape.size())) return {0};
  return shape;
}

}  // namespace pipewright

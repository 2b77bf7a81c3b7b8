#include "graph/update_rules.h"

#include "graph/delay_corrections.h"
#include "graph/error.h"
#include "graph/rows.h"

namespace pipewright {
namespace {

std::vector<std::string> momentum_if_any(const OptimizerSettings& settings) {
  if (settings.momentum == 0) return {};
  return {"momentum"};
}
std::vector<std::string> one_moment(const OptimizerSettings&) { return {"exp_avg"}; }
std::vector<std::string> two_moments(const OptimizerSettings&) { return {"exp_avg", "exp_avg_sq"}; }
std::vector<std::string> one_variance(const OptimizerSettings&) { return {"variance"}; }

std::vector<int64_t> first_only(size_t slot, std::vector<int64_t> shape) {
  return slot == 0 ? shape : std::vector<int64_t>{0};
}

// The factors of the rows, then those of the columns.
std::vector<int64_t> factored(size_t, std::vector<int64_t> shape) {
  if (!is_factored(shape)) return shape;
  const int64_t columns = shape.back();
  shape.pop_back();
  shape.back() += columns;
  return shape;
}

}  // namespace

const std::vector<UpdateRuleFacts>& update_rules() {
  static const std::vector<UpdateRuleFacts> rows = {
      {.kind = UpdateRuleKind::kSgd, .name = "sgd", .slots = momentum_if_any, .predicts = true},
      {.kind = UpdateRuleKind::kAdam, .name = "adam", .slots = two_moments, .predicts = true},
      {.kind = UpdateRuleKind::kAdamW, .name = "adamw", .slots = two_moments, .predicts = true},
      {.kind = UpdateRuleKind::kNAdam, .name = "nadam", .slots = two_moments},
      {.kind = UpdateRuleKind::kLion, .name = "lion", .slots = one_moment},
      {.kind = UpdateRuleKind::kMuon,
       .name = "muon",
       .slots = two_moments,
       .wholes = WholeSteps::kMatrices,
       .whole_slot = first_only},
      {.kind = UpdateRuleKind::kAdafactor,
       .name = "adafactor",
       .slots = one_variance,
       .wholes = WholeSteps::kAll,
       .whole_slot = factored}};
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

void check_prediction(const OptimizerSettings& settings, WeightRule weights) {
  if (!facts_of(weights).predicts) return;
  const UpdateRuleFacts& rule = update_rule_facts(settings.name);
  if (rule.predicts && !rule.slots(settings).empty()) return;
  std::vector<std::string> others;
  for (const UpdateRuleFacts& row : update_rules())
    if (row.predicts) others.emplace_back(row.name);
  throw PlanError(
      "the plan's weights '" + std::string(to_text(weights)) + "' are predicted by the optimizer, and '" +
          rule.name + "' " +
          (rule.predicts ? "without momentum keeps nothing that says where they go" : "has no form of it"),
      rule.predicts ? "Give --momentum 0.9, or a plan with other weights."
                    : "Take one of " + join(others, ", ") + ", or a plan with other weights.");
}

bool steps_whole(const OptimizerSettings& settings, const ParameterSettings& parameter, size_t dimensions) {
  switch (update_rule_facts(settings.name).wholes) {
    case WholeSteps::kNone:
      return false;
    case WholeSteps::kMatrices:
      return parameter.matrix && dimensions == 2;
    case WholeSteps::kAll:
      break;
  }
  return true;
}

bool is_factored(const std::vector<int64_t>& shape) {
  return shape.size() > 1 && shape.back() > 1 && shape[shape.size() - 2] > 1;
}

std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot,
                                const ParameterSettings& parameter, std::vector<int64_t> shape) {
  const UpdateRuleFacts& rule = update_rule_facts(settings.name);
  const bool of_rule = slot < rule.slots(settings).size();  // the correction's come behind
  if (!of_rule || !steps_whole(settings, parameter, shape.size())) return shape;
  return rule.whole_slot(slot, std::move(shape));
}

std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot, const std::string& parameter,
                                std::vector<int64_t> shape) {
  // Expressions of groups are only matched where it matters.
  if (update_rule_facts(settings.name).wholes == WholeSteps::kNone) return shape;
  return slot_shape(settings, slot, parameter_settings(settings, {parameter}).front(), std::move(shape));
}

}  // namespace pipewright

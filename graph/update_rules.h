// What the run document names of an update: its rules, a row each. Their arithmetic over tensors is
// runtime/update/update_rule.h, their learning rate graph/learning_rate.h.
#pragma once

#include <string>
#include <vector>

#include "graph/parameter_groups.h"
#include "graph/pipeline_rules.h"
#include "graph/run.h"

namespace pipewright {

enum class UpdateRuleKind { kSgd, kAdam, kAdamW, kNAdam, kLion, kMuon, kAdafactor };

/// Which parameters a rule steps as a whole, because what becomes of an element depends on others. All others
/// are stepped element by element.
enum class WholeSteps {
  kNone,
  kMatrices,  ///< those of two dimensions, unless a group says otherwise
  kAll,
};

struct UpdateRuleFacts {
  UpdateRuleKind kind;
  const char* name;
  /// Names of the tensors that the rule keeps for each weight (torch.optim's names).
  std::vector<std::string> (*slots)(const OptimizerSettings& settings);
  WholeSteps wholes = WholeSteps::kNone;
  /// Of a parameter that is stepped as a whole, the shape of a slot (by number); null where none is.
  std::vector<int64_t> (*whole_slot)(size_t slot, std::vector<int64_t> shape) = nullptr;
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
bool steps_whole(const OptimizerSettings& settings, const ParameterSettings& parameter, size_t dimensions);
/// Whether adafactor keeps second moments of a parameter of this shape for rows and columns of its last two
/// dimensions: where either is 1 they are those of the elements themselves.
bool is_factored(const std::vector<int64_t>& shape);
/// The shape of slot `slot` (by number) of a parameter of this shape: mostly its own, or that of no elements
/// where none is kept.
std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot,
                                const ParameterSettings& parameter, std::vector<int64_t> shape);
/// The same of a parameter by name, which says what groups it is in.
std::vector<int64_t> slot_shape(const OptimizerSettings& settings, size_t slot, const std::string& parameter,
                                std::vector<int64_t> shape);

}  // namespace pipewright

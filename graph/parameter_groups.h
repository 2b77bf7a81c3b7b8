// Parameters that are updated otherwise than the rest: by regular expressions over their names.
//
// Expressions are those of ECMAScript, without back-references, and match anywhere in a name ("bias|norm").
// Matching takes time proportional to the name, whatever the expression.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/json.h"

namespace pipewright {

struct OptimizerSettings;

/// What it does not set stays as the optimizer, or an earlier group that matches too, says.
struct ParameterGroup {
  std::string parameters;                     ///< expression
  std::optional<double> learning_rate_scale;  ///< the rate is multiplied by it
  std::optional<double> weight_decay;
  std::optional<bool> matrix = {};  ///< false: muon steps it by AdamW, though it has two dimensions

  static ParameterGroup from_json(JsonReader& reader);
  Json to_json() const;
};

/// "EXPRESSION:learning_rate_scale=0.1,weight_decay=0"; the last colon ends the expression. InputError.
ParameterGroup parse_parameter_group(const std::string& text);

/// What the update of one parameter uses.
struct ParameterSettings {
  double learning_rate_scale = 1;
  double weight_decay = 0;
  bool matrix = true;
};

/// By name: each group that matches sets what it names, a later one wins over an earlier one; then
/// optimizer.no_decay takes the decay away. The expressions are valid.
std::vector<ParameterSettings> parameter_settings(const OptimizerSettings& optimizer,
                                                  const std::vector<std::string>& names);

/// Expressions and ranges. InputError.
void validate_parameter_groups(const OptimizerSettings& optimizer, const std::string& where);

/// InputError for an expression that matches none of `names`: it was meant for another model, or is misspelt.
void demand_parameters_of_groups(const OptimizerSettings& optimizer, const std::vector<std::string>& names);

}  // namespace pipewright

#include "graph/parameter_groups.h"

#include <algorithm>
#include <limits>
#include <regex>

#include "graph/error.h"
#include "graph/run.h"
#include "graph/spec.h"
#include "graph/update_rules.h"

namespace pipewright {
namespace {

constexpr double kMostScale = 1e6;
constexpr size_t kMostCharacters = 1000;  // of an expression: compiling one is recursive

// The polynomial matcher: no expression makes it slow or deep, however long a name is.
std::regex compiled(const std::string& expression) {
  return std::regex(expression, std::regex::ECMAScript | std::regex_constants::__polynomial);
}

void check_expression(const std::string& where, const std::string& path, const std::string& expression) {
  const std::string remedy = "Expected a regular expression over names of parameters, such as 'bias|norm'.";
  if (expression.empty()) fail_document(where, path, "empty", remedy);
  if (expression.size() > kMostCharacters) {
    fail_document(where, path,
                  std::to_string(expression.size()) + " characters, at most " +
                      std::to_string(kMostCharacters) + " are allowed",
                  remedy);
  }
  try {
    compiled(expression);
  } catch (const std::regex_error&) {
    fail_document(where, path, in_quotes(expression) + " is no regular expression, or has a back-reference",
                  remedy);
  }
}

void demand_one(const std::string& what, const std::string& expression,
                const std::vector<std::string>& names) {
  const std::regex wanted = compiled(expression);
  const auto matches = [&](const std::string& name) { return std::regex_search(name, wanted); };
  if (std::any_of(names.begin(), names.end(), matches)) return;
  std::vector<std::string> some(names.begin(),
                                names.begin() + static_cast<ptrdiff_t>(std::min<size_t>(names.size(), 4)));
  if (names.size() > some.size()) some.push_back("...");
  throw InputError(what + " " + in_quotes(expression) + ": matches no trainable parameter of the model",
                   names.empty() ? "The model has none."
                                 : "They are named " + join(some, ", ") +
                                       "; pipewright-profiler graph --model SPEC prints all.");
}

}  // namespace

ParameterGroup ParameterGroup::from_json(JsonReader& reader) {
  reader.expect({"parameters", "learning_rate_scale", "weight_decay", "matrix"});
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ParameterGroup group;
  group.parameters = reader.string("parameters");
  if (reader.has("learning_rate_scale"))
    group.learning_rate_scale = reader.number("learning_rate_scale", -kInfinity, kInfinity);
  if (reader.has("weight_decay")) group.weight_decay = reader.number("weight_decay", -kInfinity, kInfinity);
  if (reader.has("matrix")) group.matrix = reader.boolean("matrix");
  reader.finish();
  return group;
}

Json ParameterGroup::to_json() const {
  Json json;
  json["parameters"] = parameters;
  if (learning_rate_scale) json["learning_rate_scale"] = *learning_rate_scale;
  if (weight_decay) json["weight_decay"] = *weight_decay;
  if (matrix) json["matrix"] = *matrix;
  return json;
}

ParameterGroup parse_parameter_group(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw InputError("parameter group " + in_quotes(text) + ": expected EXPRESSION:key=value,key=value",
                     "Such as 'bias|norm:weight_decay=0' or 'head:learning_rate_scale=10'.");
  }
  Spec spec = parse_spec("group" + text.substr(colon), "parameter group");
  spec.name = text.substr(0, colon);
  SpecOptions options(std::move(spec));
  ParameterGroup group;
  group.parameters = text.substr(0, colon);
  if (options.has("learning_rate_scale"))
    group.learning_rate_scale = options.number("learning_rate_scale", 1, 0, kMostScale);
  if (options.has("weight_decay")) group.weight_decay = options.number("weight_decay", 0, 0, kMostScale);
  if (options.has("matrix")) group.matrix = options.choice("matrix", "yes", {"yes", "no"}) == "yes";
  options.finish();
  return group;
}

std::vector<ParameterSettings> parameter_settings(const OptimizerSettings& optimizer,
                                                  const std::vector<std::string>& names) {
  std::vector<ParameterSettings> settings(names.size(), {1, optimizer.weight_decay});
  for (const ParameterGroup& group : optimizer.parameter_groups) {
    const std::regex wanted = compiled(group.parameters);
    for (size_t i = 0; i < names.size(); ++i) {
      if (!std::regex_search(names[i], wanted)) continue;
      if (group.learning_rate_scale) settings[i].learning_rate_scale = *group.learning_rate_scale;
      if (group.weight_decay) settings[i].weight_decay = *group.weight_decay;
      if (group.matrix) settings[i].matrix = *group.matrix;
    }
  }
  if (optimizer.no_decay.empty()) return settings;
  const std::regex wanted = compiled(optimizer.no_decay);
  for (size_t i = 0; i < names.size(); ++i)
    if (std::regex_search(names[i], wanted)) settings[i].weight_decay = 0;
  return settings;
}

void validate_parameter_groups(const OptimizerSettings& optimizer, const std::string& where) {
  if (!optimizer.no_decay.empty()) check_expression(where, "optimizer.no_decay", optimizer.no_decay);
  for (size_t i = 0; i < optimizer.parameter_groups.size(); ++i) {
    const ParameterGroup& group = optimizer.parameter_groups[i];
    const std::string path = "optimizer.parameter_groups[" + std::to_string(i) + "]";
    check_expression(where, path + ".parameters", group.parameters);
    if (!group.learning_rate_scale && !group.weight_decay && !group.matrix)
      fail_document(where, path, "sets nothing; expected learning_rate_scale, weight_decay, or matrix");
    if (group.matrix && update_rule_facts(optimizer.name).wholes != WholeSteps::kMatrices)
      fail_document(where, path + ".matrix", "of optimizer muon only, not of " + optimizer.name);
    if (group.learning_rate_scale)
      check_range(where, path + ".learning_rate_scale", *group.learning_rate_scale, 0.0, kMostScale);
    if (group.weight_decay) check_range(where, path + ".weight_decay", *group.weight_decay, 0.0, kMostScale);
  }
}

void demand_parameters_of_groups(const OptimizerSettings& optimizer, const std::vector<std::string>& names) {
  if (!optimizer.no_decay.empty()) demand_one("no_decay", optimizer.no_decay, names);
  for (const ParameterGroup& group : optimizer.parameter_groups)
    demand_one("parameter group", group.parameters, names);
}

}  // namespace pipewright

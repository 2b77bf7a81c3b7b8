#include "graph/run.h"

#include <algorithm>
#include <limits>
#include <map>

#include "graph/device_name.h"
#include "graph/error.h"
#include "graph/learning_rate.h"
#include "graph/nearest.h"
#include "graph/run_fields.h"
#include "graph/sync_rules.h"

namespace pipewright {
namespace {

constexpr int64_t kSmallestInt = std::numeric_limits<int64_t>::min();
constexpr int64_t kLargestInt = std::numeric_limits<int64_t>::max();

// Ranges are checked once, in validate(): a setting may come from the command line too.
void read(JsonReader& reader, const RunField& field, std::string* value) {
  if (!reader.has(field.key)) return;
  // What can be on, off or something else was a boolean before there was something else: such runs go on.
  const auto& names = field.rule.names;
  const bool was_boolean = std::find(names.begin(), names.end(), "on") != names.end();
  if (was_boolean && reader.raw(field.key).is_boolean())
    *value = reader.boolean(field.key) ? "on" : "off";
  else
    *value = reader.string(field.key);
}
void read(JsonReader& reader, const RunField& field, bool* value) {
  if (reader.has(field.key)) *value = reader.boolean(field.key);
}
void read(JsonReader& reader, const RunField& field, int64_t* value) {
  if (reader.has(field.key)) *value = reader.integer(field.key, kSmallestInt, kLargestInt);
}
void read(JsonReader& reader, const RunField& field, double* value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (reader.has(field.key)) *value = reader.number(field.key, -kInfinity, kInfinity);
}

void read(JsonReader& reader, const RunField& field, std::vector<ParameterGroup>* value) {
  if (!reader.has(field.key)) return;
  value->clear();
  for (JsonReader& group : reader.objects(field.key)) value->push_back(ParameterGroup::from_json(group));
}

void read(JsonReader& reader, const RunField& field, std::vector<std::string>* value) {
  if (reader.has(field.key)) *value = reader.strings(field.key);
}

void check_name(const std::string& where, const std::string& path, const std::string& value,
                const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  const std::string near = nearest(value, known);
  fail_document(where, path,
                in_quotes(value) + " is not one of " + join(known, ", ") +
                    (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

void check(const std::string& where, const RunField& field, const std::string* value) {
  if (field.rule.not_empty != nullptr && value->empty())
    fail_document(where, field.path(), std::string("empty; expected ") + field.rule.not_empty);
  if (!field.rule.names.empty()) check_name(where, field.path(), *value, field.rule.names);
}
void check(const std::string& where, const RunField& field, const int64_t* value) {
  check_range(where, field.path(), *value, field.rule.least, field.rule.most);
}
void check(const std::string& where, const RunField& field, const double* value) {
  check_range(where, field.path(), *value, field.rule.lowest, field.rule.highest);
}
void check(const std::string&, const RunField&, const bool*) {}
void check(const std::string&, const RunField&, const std::vector<std::string>*) {}
void check(const std::string&, const RunField&, const std::vector<ParameterGroup>*) {}

Json json_of(const std::vector<ParameterGroup>& groups) {
  Json list = Json::array();
  for (const ParameterGroup& group : groups) list.push_back(group.to_json());
  return list;
}
template <typename Value>
Json json_of(const Value& value) {
  return value;
}

}  // namespace

Run Run::from_json(JsonReader& reader) {
  Run run;
  std::vector<std::string> keys = {"schema"};
  std::map<std::string, JsonReader> groups;
  for (const RunField& field : run_fields()) {
    const std::string key = *field.group ? field.group : field.key;
    if (keys.back() != key) keys.push_back(key);
  }
  reader.expect(keys);
  for (const RunField& field : run_fields()) {
    if (*field.group && groups.count(field.group) == 0 && reader.has(field.group))
      groups.emplace(field.group, reader.object(field.group));
    const auto group = groups.find(field.group);
    if (*field.group && group == groups.end()) continue;
    JsonReader& from = *field.group ? group->second : reader;
    // What cannot be empty must be there, unless it has another value by itself.
    const bool needed =
        field.rule.not_empty != nullptr && std::get<const std::string*>(field.of(run))->empty();
    if (needed) *std::get<std::string*>(field.in(run)) = from.string(field.key);
    if (!needed) std::visit([&](auto* value) { read(from, field, value); }, field.in(run));
  }
  for (const auto& [name, group] : groups) group.finish();
  return run;
}

Json Run::to_json() const {
  Json json;
  for (const RunField& field : run_fields()) {
    Json& into = *field.group ? json[field.group][field.key] : json[field.key];
    std::visit([&](const auto* value) { into = json_of(*value); }, field.of(*this));
  }
  return json;
}

void Run::validate(const std::string& where) const {
  if (optimizer.beta1 == 1) fail_document(where, "optimizer.beta1", "1.0 is not below 1");
  if (optimizer.beta2 == 1) fail_document(where, "optimizer.beta2", "1.0 is not below 1");
  for (const RunField& field : run_fields())
    std::visit([&](const auto* value) { check(where, field, value); }, field.of(*this));
  if (evaluate_every_minibatches > 0 && evaluation_data.empty()) {
    fail_document(where, "evaluate_every_minibatches", "there is nothing to evaluate",
                  "give --evaluation-data SPEC, or leave this key out");
  }
  validate_parameter_groups(optimizer, where);
  check_learning_rate(learning_rate_policy, optimizer.learning_rate, where);
  if (optimizer.nesterov && optimizer.momentum == 0) {
    fail_document(where, "optimizer.nesterov", "needs a momentum above 0");
  }
  if (update_rule_facts(optimizer.name).wholes == WholeSteps::kMatrices && optimizer.momentum == 0) {
    fail_document(where, "optimizer.momentum", optimizer.name + " needs a momentum above 0",
                  "Its authors take 0.95, with nesterov.");
  }
  device_name(device, where + ": device");
  try {
    check_sync(sync);
  } catch (const InputError& error) {
    fail_document(where, "sync", error.what(), error.remedy());
  }
}

}  // namespace pipewright

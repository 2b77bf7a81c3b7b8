#include "graph/plan_changes.h"

#include "graph/json.h"
#include "graph/limits.h"

namespace pipewright {

std::vector<PlanChange> parse_plan_changes(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  if (!json.is_array() || json.empty()) {
    fail_document(where, "", "got " + described(json) + ", expected an array of changes",
                  R"(for instance [{"minibatch": 400, "plan": "b.json"}])");
  }
  std::vector<PlanChange> changes;
  int64_t frozen = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string path = "[" + std::to_string(i) + "]";
    if (!json[i].is_object())
      fail_document(where, path, "got " + described(json[i]) + ", expected an object");
    JsonReader reader(json[i], where, path);
    reader.expect({"minibatch", "plan", "freeze", "gradient_accumulation", "learning_rate_scale"});
    PlanChange change{reader.integer("minibatch", 1, kMostCount), ""};
    if (reader.has("freeze")) change.freeze = reader.integer("freeze", 0, kMostFrozenLayers);
    if (reader.has("gradient_accumulation"))
      change.gradient_accumulation = reader.integer("gradient_accumulation", 1, kMostCount);
    if (reader.has("learning_rate_scale"))
      change.learning_rate_scale = reader.number("learning_rate_scale", 0, kLargestNumber);
    const bool says_plan = reader.has("plan");
    if (says_plan) change.plan = reader.string("plan");
    reader.finish();
    if (says_plan ? change.plan.empty()
                  : !(change.freeze || change.gradient_accumulation || change.learning_rate_scale)) {
      reader.fail("plan", says_plan ? "empty; expected the file of a plan" : "missing");
    }
    if (!changes.empty() && change.minibatch <= changes.back().minibatch) {
      reader.fail("minibatch", "got " + std::to_string(change.minibatch) + " after " +
                                   std::to_string(changes.back().minibatch) +
                                   ", expected minibatches in rising order");
    }
    if (change.freeze) {
      if (*change.freeze < frozen) {
        reader.fail("freeze", "got " + std::to_string(*change.freeze) + " after " + std::to_string(frozen) +
                                  "; a layer that is frozen stays so");
      }
      frozen = *change.freeze;
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<PlanChange> read_plan_changes(const std::filesystem::path& file) {
  auto changes = parse_plan_changes(read_file(file), file.string());
  for (PlanChange& change : changes) {
    if (!change.plan.empty() && !std::filesystem::path(change.plan).is_absolute())
      change.plan = (file.parent_path() / change.plan).lexically_normal().string();
  }
  return changes;
}

std::string plan_changes_text(const std::vector<PlanChange>& changes) {
  Json json = Json::array();
  for (const PlanChange& change : changes) {
    Json entry = {{"minibatch", change.minibatch}};
    if (!change.plan.empty()) entry["plan"] = change.plan;
    if (change.freeze) entry["freeze"] = *change.freeze;
    if (change.gradient_accumulation) entry["gradient_accumulation"] = *change.gradient_accumulation;
    if (change.learning_rate_scale) entry["learning_rate_scale"] = *change.learning_rate_scale;
    json.push_back(std::move(entry));
  }
  return json_text(json);
}

}  // namespace pipewright

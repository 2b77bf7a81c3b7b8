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
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string path = "[" + std::to_string(i) + "]";
    if (!json[i].is_object())
      fail_document(where, path, "got " + described(json[i]) + ", expected an object");
    JsonReader reader(json[i], where, path);
    reader.expect({"minibatch", "plan"});
    PlanChange change{reader.integer("minibatch", 1, kMostCount), reader.string("plan")};
    reader.finish();
    if (change.plan.empty()) reader.fail("plan", "empty; expected the file of a plan");
    if (!changes.empty() && change.minibatch <= changes.back().minibatch) {
      reader.fail("minibatch", "got " + std::to_string(change.minibatch) + " after " +
                                   std::to_string(changes.back().minibatch) +
                                   ", expected minibatches in rising order");
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<PlanChange> read_plan_changes(const std::filesystem::path& file) {
  auto changes = parse_plan_changes(read_file(file), file.string());
  for (PlanChange& change : changes) {
    if (!std::filesystem::path(change.plan).is_absolute())
      change.plan = (file.parent_path() / change.plan).lexically_normal().string();
  }
  return changes;
}

std::string plan_changes_text(const std::vector<PlanChange>& changes) {
  Json json = Json::array();
  for (const PlanChange& change : changes)
    json.push_back({{"minibatch", change.minibatch}, {"plan", change.plan}});
  return json_text(json);
}

}  // namespace pipewright

#include "graph/plan_as_run.h"

#include <optional>

#include "graph/document.h"
#include "graph/regular_file.h"
#include "graph/sync_rules.h"

namespace pipewright {

Plan plan_as_run(Plan plan, const Run& run) {
  const bool side_by_side =
      plan.stages.front().ranks.size() > 1 && !sync_facts(run.sync).keeps_replicas_equal;
  if (side_by_side || run.gradient_accumulation > 1) plan.predicted.reset();
  return plan;
}

namespace {

/// What a file says is predicted, where that is not of its plan.
std::optional<Json> outdated_prediction(const std::filesystem::path& file) {
  Json json = read_json_file(file);
  if (!json.is_object() || !json.contains("predicted")) return std::nullopt;
  JsonReader reader(json, file.string());
  check_schema(reader, Plan::kSchema);
  if (Plan::from_json(reader).predicted) return std::nullopt;
  return json["predicted"];
}

}  // namespace

std::string plan_text_as_given(const Plan& plan, const std::filesystem::path& file) {
  const std::string text = document_text(plan);
  if (plan.predicted || file.empty() || !file_exists(file)) return text;
  const std::optional<Json> outdated = outdated_prediction(file);
  if (!outdated) return text;
  Json json = parse_json(text, file.string());
  json["predicted"] = *outdated;
  return json_text(json);
}

std::string outdated_text(const std::filesystem::path& file) {
  if (!outdated_prediction(file)) return "";
  return file.string() +
         " was changed after its prediction was made, which is left out, as are the names of its layers; "
         "`pipewright-optimizer evaluate --output` makes new ones.";
}

}  // namespace pipewright

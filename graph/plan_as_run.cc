#include "graph/plan_as_run.h"

#include "graph/document.h"
#include "graph/sync_rules.h"

namespace pipewright {

Plan plan_as_run(Plan plan, const Run& run) {
  const bool side_by_side =
      plan.stages.front().ranks.size() > 1 && !sync_facts(run.sync).keeps_replicas_equal;
  if (side_by_side || run.gradient_accumulation > 1) plan.predicted.reset();
  return plan;
}

std::string outdated_text(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  if (!json.contains("predicted")) return "";
  JsonReader reader(json, file.string());
  check_schema(reader, Plan::kSchema);
  if (Plan::from_json(reader).predicted) return "";
  return file.string() +
         " was changed after its prediction was made, which is left out, as are the names of its layers; "
         "`pipewright-optimizer evaluate --output` makes new ones.";
}

}  // namespace pipewright

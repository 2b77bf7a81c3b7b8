// Runs whose plan changes, on top of those of checkpointed_runs.h.
#pragma once

#include <string>
#include <vector>

#include "graph/plan_changes.h"
#include "tests/end_to_end/checkpointed_runs.h"
#include "tests/end_to_end/commands.h"

namespace pipewright::testing {

inline std::string write_changes(const TemporaryFolder& folder, const std::vector<PlanChange>& changes) {
  write_file(folder / "changes.json", plan_changes_text(changes));
  return "manual:file=" + (folder / "changes.json").string();
}

inline std::string write_flush_plan(const TemporaryFolder& folder, const std::string& name,
                                    const std::vector<int64_t>& replicas, const std::string& schedule) {
  Plan plan = even_plan(graph_of(kEndlessModel, 8, folder), replicas);
  plan.schedule = schedule;
  plan.weights = "flush";
  plan.microbatches = 4;
  for (Stage& stage : plan.stages) stage.in_flight = 4;
  write_document(folder / name, plan);
  return (folder / name).string();
}

}  // namespace pipewright::testing

#include "runtime/job.h"

#include <algorithm>

#include "graph/document.h"
#include "graph/error.h"
#include "graph/nearest.h"
#include "models/registry.h"
#include "runtime/initial_weights.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/update_rule.h"
#include "runtime/worker.h"

namespace pipewright {
namespace {

// A plan that was made for other names (another model, other options) is best explained as that.
void check_model_of_plan(const Plan& plan, const Run& run) {
  if (plan.model.empty() || plan.model == run.model) return;
  throw PlanError(
      run.plan + ": the plan is for model '" + plan.model + "', the run trains '" + run.model + "'",
      "plan again from a profile of '" + run.model + "', or give --model " + plan.model);
}

}  // namespace

Job prepare_job(const Run& run, std::optional<int64_t> world_size) {
  if (run.device != "cpu") {
    throw InputError("device '" + run.device + "': this version trains on cpu", "give --device cpu");
  }
  Job job{run, build_model(run.model, run.batch_size), {}, find_resume(run, /*every_byte=*/false)};
  make_update_rule(run.optimizer);  // its name is an input like any other
  if (run.plan.empty()) {
    job.plan = single_stage_plan(job.model.graph, world_size.value_or(1));
  } else {
    job.plan = read_document<Plan>(run.plan);
    check_model_of_plan(job.plan, run);
  }
  if (job.resume) check_resume(*job.resume, run, job.model);
  if (!run.initial_weights.empty() && !job.resume)
    check_initial_weights(TensorFiles(run.initial_weights), job.model.graph);
  const std::string where = run.plan.empty() ? "plan" : run.plan;
  check_plan_for_graph(job.plan, job.model.graph);
  if (world_size && *world_size != job.plan.world_size) {
    throw PlanError(where + ": the plan is for " + std::to_string(job.plan.world_size) +
                        " ranks, the world has " + std::to_string(*world_size),
                    "start " + std::to_string(job.plan.world_size) + " ranks, or plan for --gpus " +
                        std::to_string(*world_size));
  }
  const std::vector<std::string> trained = {"1f1b", "model-parallel"};
  if (std::find(trained.begin(), trained.end(), job.plan.schedule) == trained.end()) {
    throw PlanError(where + ": schedule '" + job.plan.schedule + "' does not train here" +
                    suggestion(job.plan.schedule, trained));
  }
  if (job.plan.weights != "stash") {
    throw PlanError(
        where + ": weights '" + job.plan.weights + "': this runtime keeps versions by the rule 'stash'",
        "set \"weights\": \"stash\" in the plan");
  }
  check_plan_runs(job.plan, run.gradient_accumulation);
  return job;
}

std::string job_fingerprint(const Job& job) {
  Run run = job.run;
  run.plan.clear();  // its contents count, not where each host keeps it
  run.output.clear();
  run.resume.clear();
  Json json;
  json["pipewright"] = PIPEWRIGHT_VERSION;
  json["libtorch"] = PIPEWRIGHT_TORCH_VERSION;
  json["plan"] = document_digest(job.plan);
  json["run"] = run.to_json();
  if (job.resume) json["resume"] = document_digest(job.resume->manifest);
  return json.dump();
}

}  // namespace pipewright

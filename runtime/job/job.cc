#include "runtime/job/job.h"

#include <algorithm>
#include <set>

#include "graph/cache_rules.h"
#include "graph/delay_corrections.h"
#include "graph/document.h"
#include "graph/error.h"
#include "graph/graph_identity.h"
#include "graph/nearest.h"
#include "graph/regular_file.h"
#include "graph/summary.h"
#include "models/definition/frozen.h"
#include "models/definition/variances.h"
#include "models/load.h"
#include "models/run/autocast.h"
#include "models/run/device_passes.h"
#include "models/run/storages.h"
#include "optimizer/plan/inference_plan.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/control/signals.h"
#include "runtime/job/recovery_policy.h"
#include "runtime/schedule/plan_check.h"
#include "runtime/schedule/plan_shape.h"
#include "runtime/schedule/side_by_side.h"
#include "runtime/schedule/turns.h"
#include "runtime/stage/loss_shares.h"
#include "runtime/stage/partition.h"
#include "runtime/stage/sample_split.h"
#include "runtime/update/update_rule.h"
#include "runtime/worker/worker.h"

namespace pipewright {
namespace {

// `file`: "" = the plan was made for the run. A plan that does not fit and was made for another name is best
// explained by that; but the name alone says nothing: a model may be a file, which is found by many paths.
void check_plan_fits(const Plan& plan, const std::string& file, const Graph& graph, const Run& run) {
  try {
    check_plan_for_graph(plan, graph);
  } catch (const PlanError& error) {
    const int64_t planned = planned_samples(plan);
    const bool other_size = planned > 0 && planned != run.batch_size;
    if (file.empty()) throw;
    if (other_size || plan.model.empty() || plan.model == run.model)
      throw PlanError(file + ": " + error.what(), error.remedy());
    throw PlanError(file + ": the plan is for model '" + plan.model + "', the run trains '" + run.model +
                        "': " + error.what(),
                    "plan again from a profile of '" + run.model + "', or give --model " + plan.model);
  }
}

// `gradient_accumulation`: as it is under the plan.
void check_plan_splits(const Plan& plan, const std::string& where, const Model& model, const Run& run,
                       int64_t gradient_accumulation) {
  try {
    const Model frozen = frozen_model(model, plan.frozen_layers);
    check_split_model(frozen, plan);
    const LossShares shares(frozen, plan, run.loss_average, gradient_accumulation);
  } catch (const PlanError& error) {
    throw PlanError(where + ": " + error.what(), error.remedy());
  }
}

// Of a plan of `file` that takes over from another: does it run?
void check_change_runs(const Plan& plan, const std::string& file, const Run& run,
                       int64_t gradient_accumulation) {
  try {
    check_plan_runs(plan, gradient_accumulation);
    check_side_by_side(plan, run.sync, gradient_accumulation);
    check_delay_correction(run, weight_rule_named(plan.weights));
    check_prediction(run.optimizer, weight_rule_named(plan.weights));
  } catch (const PlanError& error) {
    throw PlanError(file + ": " + error.what(), error.remedy());
  }
}

// `change` takes over from `before`; `gradient_accumulation`: as it is before, and then under it.
void settle(PlannedChange& change, const Plan& before, int64_t& gradient_accumulation, const Model& model,
            const Run& run) {
  const Graph& graph = model.graph;
  gradient_accumulation = change.gradient_accumulation.value_or(gradient_accumulation);
  if (change.file.empty()) change.plan = before;
  const int64_t takes = change.file.empty() ? 0 : change.plan.frozen_layers;
  const int64_t frozen = change.freeze.value_or(std::max(before.frozen_layers, takes));
  const std::string where =
      change.file.empty() ? "adapt: minibatch " + std::to_string(change.minibatch) : change.file;
  if (frozen < std::max(before.frozen_layers, takes)) {
    throw PlanError(where + ": " + std::to_string(frozen) + " layers would be frozen, " +
                        (takes > frozen ? "the plan takes " + std::to_string(takes) + " as frozen"
                                        : std::to_string(before.frozen_layers) + " are"),
                    "A layer that is frozen stays so: its optimizer state is gone.");
  }
  check_plan_fits(change.plan, change.file, graph, run);
  check_plan_splits(change.plan, where, model, run, gradient_accumulation);
  check_change_runs(change.plan, where, run, gradient_accumulation);
  if (frozen > change.plan.frozen_layers) change.plan = with_used_depths(std::move(change.plan));
  change.plan = frozen_plan(std::move(change.plan), graph, frozen);
  check_change_runs(change.plan, where, run, gradient_accumulation);
}

// What the policy of the run that goes on had decided, so that it comes to the same again.
void repeat_decisions(Job& job) {
  const auto folder = std::filesystem::absolute(job.resume->folder).parent_path().parent_path();
  if (!file_exists(folder / kChangesName)) return;
  job.changes = changes_of_file(folder / kChangesName, parse_spec(job.run.adapt, "adapt").name);
  const auto first = folder / generation_plan_name(0);
  if (document_digest(job.plan) == document_digest(read_document<Plan>(first))) return;
  throw PlanError("the run of the checkpoint began under another plan, from which it has changed since",
                  "Give --plan " + first.string() + ", or --adapt none to leave its changes aside.");
}

// Of a job that has lost a rank: the plans that its run folder has, up to where it goes on and, under the
// same plan, behind it; from there on the attempt's.
void take_attempt(Job& job, Attempt attempt) {
  const std::filesystem::path folder = job.run.output;
  const int64_t next = job.resume ? job.resume->manifest.next_minibatch : 0;
  if (attempt.began && file_exists(folder / kChangesName))
    job.changes = changes_of_file(folder / kChangesName, parse_spec(job.run.adapt, "adapt").name);
  if (next == 0) {
    if (attempt.plan) {
      job.plan = *attempt.plan;
      if (job.run.plan.empty()) job.run.world_size = job.plan.world_size;
      job.changes.clear();
    }
  } else if (attempt.plan) {
    std::erase_if(job.changes, [&](const PlannedChange& change) { return change.minibatch > next; });
    if (document_digest(*attempt.plan) != document_digest(job.plan_of(job.generation_at(next)))) {
      std::erase_if(job.changes, [&](const PlannedChange& change) { return change.minibatch == next; });
      job.changes.push_back({next, "the plan for " + std::to_string(attempt.plan->world_size) + " ranks",
                             *attempt.plan, kLossReason + attempt.reason});
    }
  }
  job.attempt = std::move(attempt);
}

// Asked for where nothing can be frozen it was meant for another run.
void check_cache(const Job& job) {
  if (cache_rules(job.run.cache).kind == CacheKind::kNone || job.decides) return;
  for (int64_t generation = 0; generation < job.generations(); ++generation)
    if (job.plan_of(generation).frozen_layers > 0) return;
  throw InputError(
      "cache '" + job.run.cache + "': no layer of this run is ever frozen, nothing would be kept",
      "Give --adapt freeze:rule=alpha, or leave out --cache.");
}

// The serial reference is one process on the CPU, and knows nothing of what depends on who is ready when.
void check_emulation(const Job& job) {
  const Run& run = job.run;
  if (!run.emulate) return;
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    throw InputError("emulate: " + what, remedy);
  };
  if (run.plan.empty()) refuse("there is no plan", "give --emulate PLAN");
  if (sync_facts(run.sync).kind != SyncKind::kAllReduce)
    refuse("sync '" + run.sync + "': pipelines side by side are not emulated",
           "Leave out --sync, or train with launch.");
  if (job.decides)
    refuse("adapt '" + run.adapt + "' decides by what ranks measure, and one process has none to measure",
           "Give --adapt manual:file=CHANGES.json with the changes, or train with launch.");
  if (cache_rules(run.cache).kind != CacheKind::kNone)
    refuse("cache '" + run.cache + "': frozen layers are computed", "Leave out --cache.");
  if (!run.disturb.empty()) refuse("disturb: there are no ranks to be made slow", "Leave out --disturb.");
  if (on_loss_of(run) != OnLoss::kEnd)
    refuse("on-loss '" + run.recovery.on_loss + "': there are no ranks to be lost", "Leave out --on-loss.");
  if (!job.device.is_cpu())
    refuse("device '" + run.device + "': plans are emulated on the CPU", "Give --device cpu.");
}

// Expressions that match nothing were meant for other names.
void check_parameter_groups(const Job& job) {
  std::vector<std::string> names;
  for (const Parameter& parameter : job.model.graph.parameters)
    if (parameter.trainable) names.push_back(parameter.name);
  demand_parameters_of_groups(job.run.optimizer, names);
}

// What the ranks will really do: an equal plan may be lowered otherwise by another build.
std::string schedule_digest(const Job& job) {
  const PipelineShape shape = shape_of(job.plan, job.run.gradient_accumulation);
  std::string text;
  for (const auto& actions : schedule_of_all(job.plan.schedule, shape, rehearsal_span(shape))) {
    text += to_text(actions) + "\n";
  }
  return digest_of(text);
}

// Appends every leaf that differs.
void compare(const std::string& name, const Json& here, const Json& rank_0, std::string& differences) {
  if (here == rank_0) return;
  if (here.is_object() && rank_0.is_object()) {
    std::set<std::string> keys;
    for (const auto& item : here.items()) keys.insert(item.key());
    for (const auto& item : rank_0.items()) keys.insert(item.key());
    for (const std::string& key : keys) {
      compare(name.empty() ? key : name + "." + key, here.value(key, Json()), rank_0.value(key, Json()),
              differences);
    }
    return;
  }
  differences +=
      (differences.empty() ? "" : "; ") + name + ": here " + here.dump() + ", rank 0 has " + rank_0.dump();
}

}  // namespace

int64_t Job::world_size() const {
  if (run.emulate) return 1;
  if (attempt && attempt->plan) return attempt->plan->world_size;
  int64_t ranks = std::max(started_ranks, plan.world_size);
  for (const PlannedChange& change : changes) ranks = std::max(ranks, change.plan.world_size);
  return ranks;
}

int64_t Job::generation_at(int64_t minibatch) const {
  return std::count_if(changes.begin(), changes.end(),
                       [&](const PlannedChange& change) { return change.minibatch <= minibatch; });
}

const Plan& Job::plan_of(int64_t generation) const {
  return generation == 0 ? plan : changes.at(static_cast<size_t>(generation) - 1).plan;
}

int64_t Job::first_minibatch_of(int64_t generation) const {
  return generation == 0 ? 0 : changes.at(static_cast<size_t>(generation) - 1).minibatch;
}

Model Job::model_of(int64_t generation) const {
  return frozen_model(model, plan_of(generation).frozen_layers);
}

int64_t Job::gradient_accumulation_of(int64_t generation) const {
  int64_t accumulation = run.gradient_accumulation;
  for (int64_t g = 0; g < generation; ++g)
    accumulation = changes.at(static_cast<size_t>(g)).gradient_accumulation.value_or(accumulation);
  return accumulation;
}

double Job::learning_rate_scale_of(int64_t generation) const {
  double scale = 1;
  for (int64_t g = 0; g < generation; ++g)
    scale = changes.at(static_cast<size_t>(g)).learning_rate_scale.value_or(scale);
  return scale;
}

std::string Job::reason_of(int64_t generation) const {
  return generation == 0 ? "start" : changes.at(static_cast<size_t>(generation) - 1).reason;
}

Job prepare_job(const Run& run, std::optional<int64_t> world_size, at::Device device,
                std::optional<Attempt> attempt) {
  Job job = prepare_forward_job(run, world_size, device, std::move(attempt));
  for (int64_t generation = 0; generation < job.generations(); ++generation)
    demand_training_plan(job.plan_of(generation));
  check_variances(job.model_of(0).graph);  // later plans freeze more
  return job;
}

Job prepare_forward_job(const Run& run, std::optional<int64_t> world_size, at::Device device,
                        std::optional<Attempt> attempt) {
  await_files_for(run.timeout_seconds);
  RecoveredState start = !attempt || !attempt->began
                             ? RecoveredState{find_resume(run, /*every_byte=*/false), "start"}
                         : attempt->state ? *attempt->state
                                          : newest_state(run);
  Job job{run, load_model(run.model, run.batch_size), {}, std::move(start.checkpoint), device};
  job.recovered_from = start.from;
  const auto policy = make_adapt_policy(run.adapt);
  job.changes = policy->known();
  job.decides = policy->decides();
  job.decide_every = policy->decides_every().value_or(0);
  job.disturbances = Disturbances(run.disturb);
  if (job.disturbances.slows_links() && device.is_cuda()) {
    throw InputError("disturb: link: what a GPU sends cannot be held back",
                     "Make ranks slow (--disturb fixed), or train on --device cpu.");
  }
  if (run.cuda_graphs == "on" && !sync_facts(run.sync).keeps_replicas_equal) {
    throw InputError("cuda_graphs does not go with sync '" + run.sync +
                         "': weights are replaced at every drain, recordings know where they lie",
                     "Leave out --cuda-graphs on, or --sync.");
  }
  if (run.loss_average == "labels" && sync_facts(run.sync).kind != SyncKind::kAllReduce) {
    throw InputError(
        "loss_average 'labels' does not go with sync '" + run.sync + "': replicas make updates of their own",
        "Leave out one of the two.");
  }
  if (cache_rules(run.cache).kind != CacheKind::kNone && run.cuda_graphs == "on") {
    throw InputError("cuda_graphs does not go with cache '" + run.cache +
                         "': recordings are of the whole stage, frozen layers too",
                     "Leave out --cuda-graphs on, or --cache.");
  }
  make_update_rule(run.optimizer);  // its name is an input like any other
  check_parameter_groups(job);
  const std::filesystem::path first_plan = std::filesystem::path(run.output) / "plan.json";
  if (run.plan.empty() && attempt && attempt->began && file_exists(first_plan)) {
    job.plan = read_document<Plan>(first_plan);  // of more ranks than are left, maybe
    job.run.world_size = job.plan.world_size;
  } else if (run.plan.empty()) {
    const int64_t ranks = world_size.value_or(std::max(job.world_size(), run.world_size));
    job.plan = single_stage_plan(job.model.graph, ranks);
    job.run.world_size = ranks;
  } else {
    job.plan = read_document<Plan>(run.plan);
    job.run.world_size = 0;  // the plan says it
  }
  if (job.resume) check_resume(*job.resume, run, job.model);
  if (attempt) {
    take_attempt(job, std::move(*attempt));
  } else if (job.resume && job.decides) {
    repeat_decisions(job);
  }
  if (!run.initial_weights.empty() && !job.resume) {
    const InitialWeights weights(run.initial_weights, job.model);
    check_initial_weights(weights.files, job.model, weights.match);
  }
  const std::string where = run.plan.empty() ? "plan" : run.plan;
  check_plan_fits(job.plan, run.plan, job.model.graph, run);
  job.plan = frozen_plan(std::move(job.plan), job.model.graph, job.plan.frozen_layers);
  settle_changes(job);
  if (job.decides) job.started_ranks = std::max<int64_t>(1, world_size.value_or(1));
  const int64_t ranks = job.world_size();
  if (world_size && *world_size != ranks) {
    throw PlanError(
        (job.changes.empty() ? where + ": the plan is for "
                             : "adapt: the largest of the run's plans is for ") +
            std::to_string(ranks) + " ranks, the world has " + std::to_string(*world_size),
        "start " + std::to_string(ranks) + " ranks, or plan for --gpus " + std::to_string(*world_size));
  }
  check_plan_splits(job.plan, where, job.model, run, run.gradient_accumulation);
  check_plan_runs(job.plan, run.gradient_accumulation);
  check_side_by_side(job.plan, run.sync, run.gradient_accumulation);
  check_delay_correction(run, weight_rule_named(job.plan.weights));
  check_prediction(run.optimizer, weight_rule_named(job.plan.weights));
  for (int64_t generation = 0; generation < job.generations(); ++generation)
    job.disturbances.check(job.plan_of(generation));
  check_cache(job);
  check_emulation(job);
  if (job.decides || on_loss_of(run) == OnLoss::kContinue)
    job.graph_of_plans = std::make_shared<Graph>(job.model.graph);
  const bool by_plan = run.device_passes == "auto" && device.is_cuda() && !job.plan.device_passes.empty();
  job.model.graph =
      with_device_passes(with_precision(job.model, run.precision, device),
                         by_plan ? job.plan.device_passes : run.device_passes, run.precision, device);
  return job;
}

std::string cuda_graphs_of(const Job& job) {
  const bool can_be = job.device.is_cuda() && sync_facts(job.run.sync).keeps_replicas_equal &&
                      cache_rules(job.run.cache).kind == CacheKind::kNone;
  return job.run.cuda_graphs == "auto" && !can_be ? "off" : job.run.cuda_graphs;
}

std::string loss_average_text(const Job& job) {
  const PipelineShape shape = shape_of(job.plan, job.run.gradient_accumulation);
  const int64_t minibatches = StageTurns(shape, shape.stages() - 1).round_length();
  if (minibatches == 1 || sync_facts(job.run.sync).kind != SyncKind::kAllReduce) return {};
  try {
    const LossShares shares(job.model_of(0), job.plan, "labels", job.run.gradient_accumulation);
    if (!shares.by_labels()) return {};
    const std::string all = "its " + std::to_string(minibatches) + " minibatches";
    return job.run.loss_average == "labels"
               ? "loss of an update: the mean over the " + shares.divisor() + " of all " + all
               : "loss of an update: the mean of " + all + "' losses, each the mean over its " +
                     shares.divisor() + " (--loss-average labels: over all of them)";
  } catch (const PlanError&) {
    return {};  // there is no other
  }
}

std::string own_buffers_text(const Job& job) {
  const auto buffers = buffers_read_back(job.model.graph);
  if (buffers.empty()) return {};
  const auto stages = partition(job.model.graph, job.plan);
  for (const std::string& buffer : buffers) {
    for (size_t s = 0; s < stages.size(); ++s) {
      const size_t replicas = job.plan.stages[s].ranks.size();
      if (replicas == 1 || job.plan.stages[s].splits()) continue;
      const bool reads = std::any_of(stages[s].nodes.begin(), stages[s].nodes.end(), [&](size_t node) {
        const auto read = job.model.graph.nodes[node].reads();
        return std::find(read.begin(), read.end(), buffer) != read.end();
      });
      if (reads)
        return "buffer '" + buffer + "': each of the " + std::to_string(replicas) + " replicas of stage " +
               std::to_string(s) + " has its own, of its minibatches alone; one device would train otherwise";
    }
  }
  return {};
}

void settle_changes(Job& job) {
  const Plan* before = &job.plan;
  int64_t gradient_accumulation = job.run.gradient_accumulation;
  for (PlannedChange& change : job.changes) {
    settle(change, *before, gradient_accumulation, job.model, job.run);
    before = &change.plan;
  }
}

PlannedChange settled_change(const Job& job, PlanDecision decision) {
  PlannedChange change{0,
                       std::move(decision.file),
                       std::move(decision.plan),
                       std::move(decision.reason),
                       decision.freeze,
                       decision.gradient_accumulation,
                       decision.learning_rate_scale};
  const int64_t last = job.generations() - 1;
  int64_t gradient_accumulation = job.gradient_accumulation_of(last);
  Model as_planned = job.model;
  as_planned.graph = *job.graph_of_plans;
  settle(change, job.plan_of(last), gradient_accumulation, as_planned, job.run);
  demand_training_plan(change.plan);
  if (change.plan.world_size > job.world_size()) {
    throw PlanError(change.file + ": the plan is for " + std::to_string(change.plan.world_size) +
                        " ranks, the run has " + std::to_string(job.world_size()),
                    "Plan for --gpus " + std::to_string(job.world_size()) + " or fewer.");
  }
  job.disturbances.check(change.plan);
  return change;
}

std::string job_fingerprint(const Job& job) {
  Run run = job.run;
  run.plan.clear();  // its contents count, not where each host keeps it
  run.adapt.clear();
  run.output.clear();
  run.resume.clear();
  Json json;
  json["pipewright"] = PIPEWRIGHT_VERSION;
  json["libtorch"] = PIPEWRIGHT_TORCH_VERSION;
  json["world"] = job.world_size();
  json["decides"] = job.decides;
  json["plan"] = document_digest(job.plan);
  json["schedule"] = schedule_digest(job);
  for (const PlannedChange& change : job.changes) {
    json["changes"].push_back({{"minibatch", change.minibatch}, {"plan", document_digest(change.plan)}});
    if (change.gradient_accumulation)
      json["changes"].back()["gradient_accumulation"] = *change.gradient_accumulation;
    if (change.learning_rate_scale)
      json["changes"].back()["learning_rate_scale"] = *change.learning_rate_scale;
  }
  json["run"] = run.to_json();
  if (job.resume) json["resume"] = document_digest(job.resume->manifest);
  return json.dump();
}

std::string fingerprint_difference(const std::string& here, const std::string& rank_0) {
  std::string differences;
  compare("", parse_json(here, "fingerprint"), parse_json(rank_0, "fingerprint"), differences);
  return differences;
}

}  // namespace pipewright

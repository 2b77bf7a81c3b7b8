// A training job before it runs: documents read, model built, plan checked. The same on every rank and in the
// launcher, so that a mistake is reported once, before anything starts.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "graph/plan.h"
#include "graph/run.h"
#include "models/definition/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/job/adapt.h"
#include "runtime/job/attempt.h"
#include "runtime/schedule/disturbance.h"

namespace pipewright {

struct Job {
  Run run;
  Model model;
  Plan plan;                         ///< the first
  std::optional<Checkpoint> resume;  ///< what run.resume means
  c10::Device device = c10::kCPU;    ///< where this process computes; a launcher does not
  bool overwrite = false;            ///< what an earlier run left in the run folder is removed, not set aside
  PlannedChanges changes{};          ///< what run.adapt knows; later also what it has decided
  Disturbances disturbances{};       ///< what run.disturb means
  bool decides = false;              ///< whether run.adapt decides on the way
  int64_t decide_every =
      0;  ///< of a policy that decides where the pipeline is empty: AdaptPolicy::decides_every()
  int64_t started_ranks = 1;  ///< of a run whose policy may want more than the first plan has
  /// Of a job that has lost a rank: what this attempt has been told. Its resume is then where it goes on.
  std::optional<Attempt> attempt{};
  std::string recovered_from{};  ///< likewise, RecoveredState::from
  /// Where run.adapt decides, or the ranks that are left go on: the graph as plans are made for, before
  /// run.precision.
  std::shared_ptr<const Graph> graph_of_plans{};

  /// Ranks that are started: as many as the largest plan has, or started_ranks; of a further attempt those of
  /// its plan, whatever plans lie behind it.
  int64_t world_size() const;
  /// A generation is what one plan trains: number 0 from minibatch 0 on, number n from changes[n - 1] on.
  int64_t generations() const { return 1 + static_cast<int64_t>(changes.size()); }
  int64_t generation_at(int64_t minibatch) const;  ///< that trains it
  const Plan& plan_of(int64_t generation) const;
  /// As that plan trains it: with the layers frozen that are frozen under it.
  Model model_of(int64_t generation) const;
  int64_t first_minibatch_of(int64_t generation) const;
  /// What the changes up to it say, or the run.
  int64_t gradient_accumulation_of(int64_t generation) const;
  double learning_rate_scale_of(int64_t generation) const;
  std::string reason_of(int64_t generation) const;
};

/// Builds the model for run.batch_size and reads run.plan; without a plan the whole model runs on every rank
/// (data parallel, or one process). InputError for what cannot be read, PlanError unless the plan fits the
/// graph and the world, its schedule is known and completes in a dry run, and its weight rule is one that the
/// runtime has. Likewise each plan that run.adapt knows, but for the world: the largest plan fills it, unless
/// further plans are decided on the way. A checkpoint to go on from is found and fits (find_resume,
/// check_resume); what run.adapt had decided in its run is known then. `world_size`: the ranks there are;
/// absent: as many as the largest plan says, without a plan as run.world_size says, or 1. The job's run then
/// says how many there are, as that decides what comes out. `device`: opened already; what comes out as
/// bfloat16 depends on it. What cannot be trained is refused too: check_variances().
///
/// With an `attempt` the job goes on from its state, or newest_state(), under the plans that were in force
/// until there, as the run folder has them, and from there on under the attempt's, which fits `world_size`.
Job prepare_job(const Run& run, std::optional<int64_t> world_size, c10::Device device = c10::kCPU,
                std::optional<Attempt> attempt = std::nullopt);

/// As prepare_job(), of a model that only runs forward, as evaluation_graph().
Job prepare_forward_job(const Run& run, std::optional<int64_t> world_size, c10::Device device = c10::kCPU,
                        std::optional<Attempt> attempt = std::nullopt);

/// Run::cuda_graphs as it is in force: "auto" is "off" without a GPU, and where "on" is refused.
std::string cuda_graphs_of(const Job& job);

/// What an update of the job takes the mean of, and what the other --loss-average would, where they differ;
/// else "".
std::string loss_average_text(const Job& job);

/// "" or a line that says which buffers replicas keep for themselves although training reads them: no plan
/// with such replicas trains what one device does.
std::string own_buffers_text(const Job& job);

/// What the changes of `job` leave open: a change without a plan goes on with the one before, and each plan
/// takes as frozen what is frozen by then (models/definition/frozen.h). PlanError where a layer that is
/// frozen would be trained again; InputError for more layers than there are.
void settle_changes(Job& job);

/// As settle_changes(), of a decision. PlanError unless it can take over from the last of the job's plans, in
/// a job whose policy decides.
PlannedChange settled_change(const Job& job, PlanDecision decision);

/// What all ranks must have in common, as text: versions, world, plan, schedule and run. Equal for ranks that
/// may train together.
std::string job_fingerprint(const Job& job);
/// The entries in which two fingerprints differ, each with both values: "run.seed: here 1, rank 0 has 2"; ""
/// if they are equal.
std::string fingerprint_difference(const std::string& here, const std::string& rank_0);

}  // namespace pipewright

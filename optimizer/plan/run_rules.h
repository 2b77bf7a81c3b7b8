// From the stages that a search found to a plan that runs: schedule, version rule, minibatches of an update,
// in-flight depths. The search knows periods; fill and drain, which depend on the number of stages, only the
// simulator. So schedules that drain are planned by candidates: the best stages for several numbers of
// stages, each simulated.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/plan/optimizer.h"
#include "optimizer/price/depths.h"
#include "optimizer/search/constraints.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// Fills in what the request leaves open. InputError for a schedule or rule that is not known, does not go
/// together or does not go with the strategy.
PlanRequest with_run_rules(PlanRequest request, int64_t devices);

bool drains(const PlanRequest& request);  ///< schedule with weights "flush"
/// Training with a stage on each rank and minibatches that overlap.
bool runs_overlapping(const Problem& problem, const PlanRequest& request);
bool begins_with_known(const PlanRequest& request);

/// Whether stages may hold copies of tied parameters: where all of them update after the same minibatches.
/// `request` as with_run_rules() makes it.
Ties ties_of(const PlanRequest& request);

/// What the search has to know of the rules, and no stage of more replicas, or of longer rounds, than
/// PlanRequest::most_minibatches_per_update allows.
void search_by_rules(const PlanRequest& request, Problem* problem);

/// The best solution for each of several numbers of stages; those of schedule "interleaved" have
/// `stages_per_rank` stages for each device. `brief`: among some of the cuts. Empty if there is none.
std::vector<Solution> candidates(const Problem& problem, const PlanRequest& request,
                                 const std::vector<NodeSet>& pinned, bool brief);

/// What asks for plans that run as this one does: schedule, weights, microbatches.
PlanRequest request_like(const Plan& plan);

/// How plans of such a request run. `request` as with_run_rules() makes it.
RunRules rules_of(const PlanRequest& request);

}  // namespace pipewright

// From a request to what searches have to know of schedule, weight rule and minibatches of an update.
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

/// The devices, what they hold and how they are used, without states; `request` as with_run_rules() makes it.
Problem requested_problem(const Profile& profile, const Topology& topology, const PlanRequest& request);

/// What the search has to know of the rules, and no stage of more replicas, or of longer rounds, than
/// PlanRequest::most_minibatches_per_update allows.
void search_by_rules(const PlanRequest& request, Problem* problem);

/// Stages for several numbers of devices, `stages_per_rank` for each: of schedules whose ranks have several,
/// which are simulated each, as the search knows no warm-up and drain. Empty if there is none.
std::vector<Solution> interleaved_candidates(const Problem& problem, const PlanRequest& request);

/// What asks for plans that run as this one does: schedule, weights, microbatches.
PlanRequest request_like(const Plan& plan);

/// How plans of such a request run. `request` as with_run_rules() makes it.
RunRules rules_of(const PlanRequest& request);

}  // namespace pipewright

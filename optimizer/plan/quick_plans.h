// Plans for devices as they are now, found in counted work: for planning again while a plan is in force
// (replan.h), where make_plan() takes too long.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "graph/topology.h"
#include "optimizer/plan/optimizer.h"
#include "optimizer/search/counted_work.h"
#include "runtime/schedule/shape.h"

namespace pipewright {

/// Whether quick_plans() knows the schedule: one that trains, a stage on each rank, minibatches overlapping.
bool quickly_planned(const PlanRequest& request);

/// For each node, of a plan's sums: steps.
inline constexpr double kPlanSumSteps = 300;
/// About what it takes to simulate a plan once, in steps, and to check its schedule before.
double simulation_steps(const PipelineShape& shape);
double schedule_check_steps(int64_t ranks);

/// Plans on all devices, fastest first by the formula (chain_moves.h), a few; with their predictions. At
/// simulated depths where there is work enough to simulate, otherwise at those that a search assumes, as far
/// as memory holds them. `priced` false: without predictions, at those that a search assumes. From stages
/// along one order of the nodes, in which the plan in force is a chain of stages too: those found
/// (row_seeds.h) for several orders of the devices, without replicas and with as many of them at least as
/// different powers of two, and the plan in force; of these the best are improved by local moves, which end
/// where none gains or with the work. Nothing where no plan fits the memory, or there is not work enough to
/// find one.
///
/// `request` is that of planning again: schedule, weights and microbatches those of `in_force`, strategy
/// "best", all devices. Deterministic. Errors as make_plan() and evaluate_plan().
std::vector<Plan> quick_plans(const Profile& profile, const Topology& topology, const PlanRequest& request,
                              const Plan& in_force, CountedWork* work, bool priced = true);

}  // namespace pipewright

// What a plan takes: the one home of prices. Whatever prices a plan (plan, compare, check, evaluate,
// simulate, show, planning again) makes a PlanCost and asks price(); a search brings the sums of its tables,
// everybody else those over the plan's nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/plan.h"
#include "optimizer/price/plan_cost.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// How long each stage's devices and links are busy for a minibatch, by cause, where its ranks are.
std::vector<StagePeriod> busy_periods(const Plan& plan, const PlanCost& cost);

/// What a rank of each stage does in a minibatch, and keeps at the plan's depths.
std::vector<StagePrediction> stage_predictions(const Plan& plan, const PlanCost& cost);

/// Time of a minibatch in the long run: as simulated where that is done, and at least what the busiest device
/// or link takes where the simulation does not know that. `simulated_seconds`: what it is known to make of
/// the plan (choose_depths()). The schedule must finish.
double price_seconds(const Plan& plan, const PlanCost& cost,
                     std::optional<double> simulated_seconds = std::nullopt);

/// The same, with memory, cause and bound. PlanError if the schedule does not finish.
Prediction price(const Plan& plan, const PlanCost& cost, int64_t minibatch_samples);

/// Whether such a plan is simulated. Otherwise that would take longer than planning should, and depths and
/// period are those of the formula.
bool worth_simulating(const PipelineShape& shape);

}  // namespace pipewright

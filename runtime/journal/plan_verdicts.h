// What each plan in force of a run was worth: its own time, its prediction, and whether changing to it paid.
#pragma once

#include <string>
#include <vector>

#include "graph/summary.h"

namespace pipewright {

/// A line for each plan under which minibatches were trained, of a run whose plan changed: "minibatches 200
/// to 599, plan generation-1.plan.json: 140 ms a minibatch, predicted 135 ms; helped: 241 ms -> 140 ms a
/// minibatch, saved 40.1 s". What was saved is of all minibatches under the plan, against those just before
/// the change, less what changing took. A run that merely went on counts as going on with its plan. Empty for
/// one plan.
std::vector<std::string> plan_verdicts(const Summary& summary);

}  // namespace pipewright

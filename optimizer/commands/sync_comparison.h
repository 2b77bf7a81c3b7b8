// `simulate --sync`: pipelines side by side under several ways to hold them together.
#pragma once

#include <string>
#include <vector>

#include "graph/text_table.h"
#include "optimizer/commands/plan_inputs.h"
#include "runtime/schedule/disturbance.h"

namespace pipewright {

/// As given; "all": every rule with its defaults, and "none" with shared minibatches. InputError for a SPEC
/// that is none.
std::vector<std::string> syncs_to_compare(const std::vector<std::string>& given);

/// A row for each of `syncs`: the plan's pipelines training `minibatches` of a run. PlanError for a plan that
/// is not pipelines side by side. `disturbances` may be null.
TextTable sync_comparison(const Plan& plan, const MeasuredPlan& measured,
                          const std::vector<std::string>& syncs, int64_t minibatches,
                          const Disturbances* disturbances);

}  // namespace pipewright

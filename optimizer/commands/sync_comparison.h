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

struct SyncComparison {
  TextTable table;     ///< a row for each rule
  std::string advice;  ///< a sentence: the fastest that averages weights on the way, if it gains 10 % or more
};
/// The plan's pipelines training `minibatches` of a run under each of `syncs`, each pipeline on its own
/// devices. PlanError for a plan that is not pipelines side by side. `disturbances` may be null.
SyncComparison compare_syncs(const Plan& plan, const Inputs& inputs, const std::vector<std::string>& syncs,
                             int64_t minibatches, const Disturbances* disturbances);

}  // namespace pipewright

// `simulate --sync`: pipelines side by side under several ways to hold them together.
#pragma once

#include <string>
#include <vector>

#include "graph/json.h"
#include "graph/text_table.h"
#include "optimizer/commands/plan_inputs.h"
#include "runtime/schedule/disturbance.h"
#include "runtime/side_by_side/simulate_pipelines.h"

namespace pipewright {

/// As given; "all": every rule with its defaults, and "none" with shared minibatches. InputError for a SPEC
/// that is none.
std::vector<std::string> syncs_to_compare(const std::vector<std::string>& given);

struct SyncRow {
  std::string sync;  ///< SPEC
  double gain = 1;   ///< how many times as fast as all-reduce
  int64_t run_minibatches = 0;
  SimulatedPipelines run;
};
/// The plan's pipelines training `minibatches` of a run under each of `syncs`, each pipeline on its own
/// devices. PlanError for a plan that is not pipelines side by side. `disturbances` may be null.
std::vector<SyncRow> compare_syncs(const Plan& plan, const Inputs& inputs,
                                   const std::vector<std::string>& syncs, int64_t minibatches,
                                   const Disturbances* disturbances);

/// Another way to train has to gain so much.
inline constexpr double kSyncWorthIt = 1.1;

TextTable sync_table(const std::vector<SyncRow>& rows);
/// A sentence: the fastest that averages weights on the way, if it gains 10 % or more.
std::string sync_advice(const std::vector<SyncRow>& rows);
/// An object a row.
Json sync_json(const std::vector<SyncRow>& rows);

}  // namespace pipewright

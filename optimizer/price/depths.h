// From stages to a plan as it runs: schedule and rule, depths, price.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "optimizer/price/price.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// How a request wants its plans to run.
struct RunRules {
  std::string schedule;
  std::string weights;
  int64_t microbatches = 0;     ///< of an update of all stages; 0 where each stage updates by itself
  int64_t stages_per_rank = 1;  ///< of schedules with several
};

/// Sets schedule, rule and microbatches, and with several stages a rank the ranks.
void run_by(const RunRules& rules, Plan* plan);

/// Sets the plan's depths, and the first trained stage's in `cost`, which was made of the plan after
/// run_by(): those that the simulation wants, as far as memory allows (0: any). False if the schedule needs
/// more depth than that, or nothing fits. `simulates` false: the usual depths. `aim`, if given: of the
/// depths; its `seconds` stay 0 where these are not simulated. Whether stages that share a rank fit together
/// is the caller's to see.
bool choose_depths(int64_t memory_bytes, bool simulates, Plan* plan, PlanCost* cost, DepthAim* aim = nullptr);

/// What the plans of one problem are priced with. Borrows the flow.
struct Pricing {
  const Dataflow* flow;
  CostInputs inputs;  ///< cost_inputs()
  RunRules rules;
  int64_t memory_bytes = 0;  ///< of each device; 0: any
  int64_t minibatch_samples = 0;
};

/// The stages as they run: by the rules, at the depths given or else those chosen, with their prediction.
/// Nothing where no depths fit. PlanError as loads_of_plan() and price().
std::optional<Plan> priced_plan(Plan plan, const Pricing& pricing, const std::vector<int64_t>& depths = {},
                                bool simulates = true);

}  // namespace pipewright

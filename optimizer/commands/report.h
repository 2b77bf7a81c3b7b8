// Plans and runs as tables for people.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/text_table.h"
#include "optimizer/commands/options.h"
#include "runtime/schedule/memory.h"
#include "runtime/schedule/simulate.h"

namespace pipewright {

/// "3 ranks 4-6"-style list: "0", "0-2", "0,2,4".
std::string ranks_text(const std::vector<int64_t>& ranks);
/// The stage's ranks, and the classes of their devices: "2-3 (slow)".
std::string devices_text(const Stage& stage, const Topology& topology);
/// The stage's in_flight; "3, recomputes" where it does, "3, recomputes its last 0.5" where that is a part.
std::string depth_text(const Stage& stage);
/// "3-1", and which stages recompute: "3-1, recomputing 0".
std::string shape_and_recompute_text(const Plan& plan);
/// "features.0 .. classifier.6 (12)".
std::string layers_text(const std::vector<std::string>& layers);
/// Of a plan: its layers, or where it has none (written by hand) its nodes.
std::string layers_text(const Stage& stage);
/// "3.91x", "12.4 %": three significant digits.
std::string number_text(double value);

/// What the plan makes of tied parameters: which stages have copies, or which cuts its weights forbid. A
/// sentence; "" where there are none of either.
std::string ties_text(const Plan& plan, const Profile& profile);

/// What runs that the topology was calibrated by make of prices: a sentence; "" where it was not.
/// What ranks of a host take from each other in the plan by the profile, or why nothing is taken for it; ""
/// where it does not matter.
std::string crowd_text(const Plan& plan, const Inputs& inputs);
/// How sums over replicas on several hosts are priced, where nobody has measured them; "" for plans without.
std::string sums_text(const Plan& plan, const Inputs& inputs);
/// "1.3x", or for a plan of whose ranks none is slowed "-": of its passes on the slowest stage.
std::string crowd_cell(const Plan& plan, const Inputs& inputs);
std::string calibration_text(const HostFactors& factors);

/// Memory of the fullest rank, of all stages that it has.
int64_t largest_memory(const Plan& plan, const Prediction& prediction);

/// One line a stage: what it costs per minibatch, by cause, what binds it, its memory, its layers by the
/// profile. The costs need the profile; `prediction` is priced by `inputs.request`.
TextTable stage_table(const Plan& plan, const Prediction& prediction, const Inputs& inputs);
/// The same from the plan alone, as far as its own prediction goes.
TextTable plan_table(const Plan& plan);
/// Of a plan for inference: its latency, and how often a minibatch can come.
std::string inference_text(const Plan& plan, const Inputs& inputs);
/// Above memory_table(): what it has counted for the optimizer, and whether anybody has said so.
std::string memory_heading(const Inputs& inputs);
TextTable memory_table(const Prediction& prediction);
/// One line a rank. "planned" is the prediction's memory, which has room for the workspace and more messages.
TextTable simulation_table(const Simulation& simulation, const std::vector<RankMemory>& memory,
                           const Prediction& prediction);

}  // namespace pipewright

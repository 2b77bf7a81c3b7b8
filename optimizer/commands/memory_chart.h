// Memory of each rank over the time of a simulation, as files for people and programs.
#pragma once

#include <string>
#include <vector>

#include "optimizer/cost/cost_model.h"
#include "pages/svg.h"
#include "runtime/schedule/memory.h"

namespace pipewright {

/// What the simulator needs to know of the memory of each stage.
std::vector<StageBytes> bytes_of(const std::vector<StageLoad>& loads, const CostInputs& inputs);

/// "rank,seconds,bytes", a line for each change.
std::string memory_csv(const std::vector<RankMemory>& ranks, const std::vector<int64_t>& numbers);
/// A band for each rank, on one scale. `numbers`: of the ranks.
Svg memory_svg(const std::vector<RankMemory>& ranks, const std::vector<int64_t>& numbers,
               double total_seconds, const std::string& title);

}  // namespace pipewright

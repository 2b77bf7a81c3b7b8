// A plan as a drawing of its stages.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "pages/svg.h"

namespace pipewright {

/// From left to right a box in its colour for each stage, with `notes[s]` (its ranks, its time) and its
/// layers, or its nodes where the plan names no layers. CheckError unless there is a note for each stage.
Svg stages_drawing(const Plan& plan, const std::vector<std::string>& notes);

}  // namespace pipewright

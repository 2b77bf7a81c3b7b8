// A plan as a drawing of its stages.
#pragma once

#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/profile.h"
#include "pages/svg.h"

namespace pipewright {

/// The model from left to right: a box in its colour for each stage with its layers, and below each
/// `notes[s]` (its ranks, its time); with a profile an arrow with the bytes of a minibatch that cross each
/// cut, forward. `profile` may be null. CheckError unless there is a note for each stage.
Svg stages_drawing(const Plan& plan, const Profile* profile, const std::vector<std::string>& notes);

}  // namespace pipewright

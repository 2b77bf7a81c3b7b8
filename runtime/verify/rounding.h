// How far rounding alone takes training: it is repeated from weights that are one unit in the last place off.
#pragma once

#include <cstdint>

#include "models/definition/model.h"
#include "runtime/stage/stage_replica.h"

namespace pipewright {

/// What the model's initialisers give the stage before the first minibatch.
StageState initial_state(const Model& model, const StageProgram& stage, uint64_t seed);

/// Every trainable weight by one unit in the last place, up and down in turns. Other tensors stay; those of
/// `state` that change are new ones.
void shift_by_rounding(const StageProgram& stage, StageState& state);

}  // namespace pipewright

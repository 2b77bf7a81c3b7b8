// Where stages get their state from: the model's first values, a file of weights, a checkpoint.
#pragma once

#include <memory>
#include <optional>

#include "graph/run.h"
#include "models/definition/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stage/stage_state.h"

namespace pipewright {

/// What a run begins with: the checkpoint that it goes on from (`resume`), else its file of initial weights,
/// else the model's first values. `in_flight`: minibatches are in flight where it goes on (pipeline_began()
/// of runtime/checkpoint/checkpoint_state.h). Borrows all. InputError, when it is asked, for a damaged file.
std::unique_ptr<StateSource> start_of(const Run& run, const Model& model,
                                      const std::optional<Checkpoint>& resume, bool in_flight = false);

}  // namespace pipewright

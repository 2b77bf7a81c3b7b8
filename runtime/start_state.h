// What the stages of a job start from.
#pragma once

#include <optional>

#include "runtime/job.h"
#include "runtime/stage_replica.h"

namespace pipewright {

/// The stage's state in the checkpoint that the job goes on from, or in its file of initial weights; nothing
/// where the model's initialisers say it. InputError for a damaged file.
std::optional<StageState> start_state(const Job& job, const StageProgram& stage);

}  // namespace pipewright

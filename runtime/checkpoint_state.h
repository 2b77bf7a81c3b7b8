// The state of a stage as a file of tensors by name, and back: under the same plan or any other.
#pragma once

#include "models/safetensors.h"
#include "runtime/checkpoint.h"
#include "runtime/worker.h"

namespace pipewright {

/// The tensors of a stage file (checkpoint.h). Borrows the state's tensors.
NamedTensors stage_tensors(const StageProgram& stage, const StageState& state);

/// What the stage of a plan starts from: each tensor from the file that holds it, whose bytes are compared
/// with the manifest first. A version number is that of the parameter that was updated most. The checkpoint
/// has passed check_resume(). InputError for a damaged file.
StageState load_stage_state(const Checkpoint& checkpoint, const StageProgram& stage,
                            const OptimizerSettings& optimizer);

}  // namespace pipewright

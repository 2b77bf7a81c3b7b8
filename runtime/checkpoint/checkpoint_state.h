// The state of a stage as a file of tensors by name, and back: under the same plan or any other.
#pragma once

#include "models/safetensors/safetensors.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/tensors_by_name.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// The tensors of a stage's `state` file (checkpoint.h). Borrows the state's tensors.
NamedTensors stage_tensors(const StageProgram& stage, const StageState& state);

/// What the stage of a plan starts from: each tensor from the file that holds it, whose bytes are compared
/// with the manifest first. A version number is that of the parameter that was updated most. The checkpoint
/// has passed check_resume(). InputError for a damaged file.
StageState load_stage_state(const Checkpoint& checkpoint, const StageProgram& stage,
                            const OptimizerSettings& optimizer);
/// The same of tensors that lie elsewhere: `where`, for messages.
StageState load_stage_state(TensorsByName& tensors, const std::string& where, const StageProgram& stage,
                            const OptimizerSettings& optimizer);

/// Whether minibatches are in flight where the run goes on: the minibatch before which the pipeline counts as
/// empty. That of the manifest if the plan and the rounds are the checkpoint's and it has every version that
/// minibatches up to `end`, where the span ends, will read; else next_minibatch.
int64_t pipeline_began(const CheckpointManifest& manifest, const Plan& plan, int64_t gradient_accumulation,
                       int64_t end);

/// In the first case: adds to what load_stage_state() gave what only the same plan goes on from, older
/// versions and the replica's own buffers.
void add_in_flight_state(const Checkpoint& checkpoint, int64_t stage, int64_t replica,
                         const StageProgram& program, StageState& state);

}  // namespace pipewright

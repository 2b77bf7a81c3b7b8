// First values of parameters and buffers from a file, in the place of the model's initialisers.
#pragma once

#include "models/definition/model.h"
#include "models/safetensors/safetensors.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// InputError unless the file holds each parameter and buffer that the graph reads, in its shape and its
/// dtype (or another floating-point one: values are then converted), and nothing else but what goes along
/// with such: the counters `*.num_batches_tracked` of batch norms, and an optimizer's tensors in a merged
/// checkpoint. Of an exported program the names are those of state_dict_of(): a tied tensor may have any of
/// its names (under several, it is the same there), what no node reads may be there, and what is not saved
/// may not; it is then the program's. The message names the tensor and the nearest there is.
void check_initial_weights(const TensorFiles& files, const Model& model);

/// The stage's own part of it, before the first update. The files have passed the check.
StageState initial_state_from(const TensorFiles& files, const Model& model, const StageProgram& stage);

}  // namespace pipewright

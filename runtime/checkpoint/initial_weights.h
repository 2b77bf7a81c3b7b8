// First values of parameters and buffers from a file, in the place of the model's initialisers.
#pragma once

#include "models/definition/model.h"
#include "models/safetensors/safetensors.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// What the setting initial_weights names: FILE, or FILE:match=shared.
struct InitialWeights {
  explicit InitialWeights(const std::string& setting);
  TensorFiles files;
  /// Only what both have is taken: what the model has besides starts anew, what the file has besides is left.
  bool shared_only = false;
};

/// "" if nothing starts anew and nothing is left; else a line that says what.
std::string shared_weights_text(const InitialWeights& weights, const Model& model);

/// InputError unless the file holds each parameter and buffer that the graph reads, in its shape and its
/// dtype (or another floating-point one: values are then converted), and nothing else but what goes along
/// with such: the counters `*.num_batches_tracked` of batch norms, and an optimizer's tensors in a merged
/// checkpoint. Of an exported program the names are those of state_dict_of(): a tied tensor may have any of
/// its names (under several, it is the same there), what no node reads may be there, and what is not saved
/// may not; it is then the program's. `LayerNorm.gamma` and `.beta` are what transformers has called a weight
/// and a bias. The message names the tensor and the nearest there is. With `shared_only` there may be others
/// on both sides, but not nothing in common.
void check_initial_weights(const TensorFiles& files, const Model& model, bool shared_only = false);

/// The stage's own part of it, before the first update; a parameter that the file lacks has its first value
/// of `seed`. The files have passed the check.
StageState initial_state_from(const TensorFiles& files, const Model& model, const StageProgram& stage,
                              uint64_t seed);

}  // namespace pipewright

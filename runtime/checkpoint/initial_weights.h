// First values of parameters and buffers from a file, in the place of the model's initialisers.
#pragma once

#include "models/definition/model.h"
#include "models/safetensors/safetensors.h"
#include "runtime/worker/worker.h"

namespace pipewright {

/// How much of the model a file has to have.
enum class WeightsMatch {
  kAll,     ///< every tensor, and no other
  kShared,  ///< what the model has besides starts anew, what the file has besides is left
  kFitting  ///< likewise, and what has another shape there: a head for other classes
};

/// What the setting initial_weights names: FILE, or FILE:match=shared,prefix=PREFIX.
struct InitialWeights {
  /// Names are the model's: without `prefix`, where the file's have it, and without what wrappers put there,
  /// where the model has no such name: `_orig_mod.` (torch.compile) and its like, and in front of all names
  /// `module.` (DataParallel, DistributedDataParallel). Of kFitting no tensor of another shape is left.
  /// InputError: cannot be read, an unknown option, a prefix that no name has.
  InitialWeights(const std::string& setting, const Model& model);
  TensorFiles files;
  WeightsMatch match = WeightsMatch::kAll;
  std::string taken_off;                    ///< from names: "module., _orig_mod."
  std::vector<std::string> other_shapes{};  ///< tensors of the model that have another shape in the file
};

/// "" if all was taken as it is; else a line that says what was not.
std::string initial_weights_text(const InitialWeights& weights, const Model& model);

/// InputError unless the file holds each parameter and buffer that the graph reads, in its shape and its
/// dtype (or another floating-point one: values are then converted), and nothing else but what goes along
/// with such: the counters `*.num_batches_tracked` of batch norms, and an optimizer's tensors in a merged
/// checkpoint. Of an exported program the names are those of state_dict_of(): a tied tensor may have any of
/// its names (under several, it is the same there), what no node reads may be there, and what is not saved
/// may not; it is then the program's. `LayerNorm.gamma` and `.beta` are what transformers has called a weight
/// and a bias. The message names the tensor and the nearest there is. But for kAll there may be others
/// on both sides, but not nothing in common.
void check_initial_weights(const TensorFiles& files, const Model& model,
                           WeightsMatch match = WeightsMatch::kAll);

/// The stage's own part of it, before the first update; a parameter that the file lacks has its first value
/// of `seed`. The files have passed the check. InputError as demand_numbers() of models/initialise.h.
StageState initial_state_from(const TensorFiles& files, const Model& model, const StageProgram& stage,
                              uint64_t seed);

}  // namespace pipewright

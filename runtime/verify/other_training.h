// What another program has left of the same training: losses, and weights after some minibatches.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/definition/model.h"
#include "runtime/schedule/schedule.h"

namespace pipewright {

struct OtherTraining {
  struct Weights {
    std::string file;
    int64_t minibatches = 0;                    ///< trained: all before this one
    std::map<std::string, at::Tensor> tensors;  ///< by the graph's names, in the graph's shapes and dtypes
  };
  std::string from;              ///< the paths, as they were given
  std::vector<double> losses;    ///< of the run's minibatches from its first on; may be fewer, or none
  std::vector<Weights> weights;  ///< by rising minibatches
};

/// Each path is one of these, told apart by its name and what is in it:
///  - tensors (.safetensors, or an index of such files) by the names of the model's state_dict(), with or
///    without `module.` or `_orig_mod.` before them. After which minibatch: metadata `minibatches`, else the
///    last. Tensors that the model has not are passed over; its trainable parameters must be there.
///  - losses: a JSON list of numbers, the run's first minibatch first, or lines of objects with `minibatch`
///  and
///    `loss` (metrics.jsonl). null and NaN are no finite number.
///  - a folder, for all such files in it: a run folder too.
/// InputError for what is none of these, twice the same, of no minibatch of the run, or of another model.
OtherTraining read_other_training(const std::vector<std::string>& paths, const Model& model,
                                  Span minibatches);

}  // namespace pipewright

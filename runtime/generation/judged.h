// What an evaluation's minibatch is worth, by the graph's scoring.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/definition/scoring.h"
#include "runtime/journal/evaluated_minibatch.h"

namespace pipewright {

/// What a Scoring names, of one minibatch, on the CPU.
struct ScoredTargets {
  at::Tensor scores;  ///< undefined where they are none of the graph's
  at::Tensor targets;
  at::Tensor class_weights;  ///< undefined: all classes count the same
};

/// Sets what `scoring` says of the minibatch: what its loss weighs and, given scores, which targets were
/// right.
void judge(const Scoring& scoring, const ScoredTargets& of, EvaluatedMinibatch& minibatch);

}  // namespace pipewright

// What an evaluation's minibatch is worth, by the graph's scoring.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/definition/scoring.h"
#include "runtime/messages/evaluated_minibatch.h"

namespace pipewright {

/// What a Scoring names, of one minibatch, on the CPU.
struct ScoredTargets {
  at::Tensor scores;
  at::Tensor targets;
};

/// Sets which targets were right. `of.scores` are defined.
void judge(const Scoring& scoring, const ScoredTargets& of, EvaluatedMinibatch& minibatch);

}  // namespace pipewright

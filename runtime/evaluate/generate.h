// Sequences that the model makes on its own, token after token, under the plan that evaluates it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/data/sequences.h"
#include "runtime/generation/evaluation.h"
#include "runtime/launch/rank_session.h"

namespace pipewright {

/// By minibatch the field that `generation` names, filled by the model: each time the most likely token (of
/// equally likely ones the first) until a sequence has its end or the field is full. One walk through the
/// pipeline for each token: no state is kept between them. All ranks call it, and get the same.
std::vector<at::Tensor> generate(Evaluation& evaluation, const Generation& generation, const Dataset& data,
                                 const Run& run, const Plan& plan, RankSession& session);

/// BLEU of what generate() has made, against the labels.
double bleu_of(const std::vector<at::Tensor>& made, const Generation& generation, const Dataset& data);

}  // namespace pipewright

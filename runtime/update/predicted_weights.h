// What weights are expected to be after further updates, from what an update rule keeps of the ones before
// (weights "predict"; graph/pipeline_rules.h says whose formulas these are). LibTorch's operators, each of
// which rounds: the bits depend on neither threads nor instruction sets. They take no memory but `into`.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/device/step_arithmetic.h"

namespace pipewright {

/// into = weight - way * velocity; `way`: rate times updates.
void predict_by_velocity(const at::Tensor& weight, const at::Tensor& velocity, double way, at::Tensor into);
/// into = weight - first / (sqrt(second) / root_second + epsilon) * rate, these factors those of the last
/// step, but for a rate that has the updates in it.
void predict_by_moments(const at::Tensor& weight, const at::Tensor& first, const at::Tensor& second,
                        const AdamFactors<double>& factors, at::Tensor into);

}  // namespace pipewright

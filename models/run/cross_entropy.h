// The cross entropy that reads scores once, as an operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace pipewright {

/// at::cross_entropy_loss: for rows of float scores, or of bfloat16 scores under autocast, and the number of
/// a class for each, it is computed in float without a copy of the scores: the forward reads them where they
/// lie and keeps one number a row, the backward reads them again and writes their gradient as they lie. With
/// class weights, smoothed labels, shares of classes in a label's place or other shapes it is LibTorch's, and
/// so on a GPU where the plug-in has no kernels.
at::Tensor cross_entropy_fused(const at::Tensor& scores, const at::Tensor& labels,
                               const std::optional<at::Tensor>& class_weights, int64_t reduction,
                               int64_t ignored, double label_smoothing);

}  // namespace pipewright

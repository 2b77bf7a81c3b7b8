// The kernels of the plug-in, for sources that are not compiled by nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/cuda/norm_rows.h"
#include "runtime/cuda/score_rows.h"
#include "runtime/cuda/step_chunks.h"

namespace pipewright {

/// False where the plug-in was built without nvcc: each launch then throws.
bool has_kernels();

/// Puts one launch into `stream`. The table is copied into it. S is float, double, c10::BFloat16 or
/// c10::Half.
template <typename S>
void launch_step(const StepTable<S>& table, const SgdRule<typename Computed<S>::Type>& rule,
                 cudaStream_t stream);
template <typename S>
void launch_step(const StepTable<S>& table, const AdamRule<typename Computed<S>::Type>& rule,
                 cudaStream_t stream);
template <typename S>
void launch_step(const StepTable<S>& table, const LionRule<typename Computed<S>::Type>& rule,
                 cudaStream_t stream);
void launch_copy(const CopyTable& table, cudaStream_t stream);

/// Of `count` rows: the logarithm of the sum of a row's exponentials, and its loss, 0 if it asks nothing.
template <typename S>
void launch_row_losses(const ScoreRows<S>& rows, int64_t count, float* log_sums, float* losses,
                       cudaStream_t stream);
/// `loss` becomes their sum, divided by `asking` if `mean`; `asking` how many of the labels are not
/// `ignored`.
void launch_sum_of_losses(const float* losses, const int64_t* labels, int64_t ignored, int64_t count,
                          bool mean, float* loss, float* asking, cudaStream_t stream);

/// Where the gradient of a row's loss comes from: one for each row, or one for all; divided by `asking`
/// unless that is null.
struct LossGradient {
  const float* gradient;
  bool by_row;
  const float* asking;
};
/// `to`: rows of `columns` numbers, those behind the classes become 0.
template <typename S>
void launch_score_gradients(const ScoreRows<S>& rows, int64_t count, const float* log_sums,
                            const LossGradient& of_loss, S* to, int64_t columns, cudaStream_t stream);

/// A row of `to` for each chunk of the grid.
void launch_norm_chunks(const NormRows& of, const NormGrid& grid, const NormTable& to, cudaStream_t stream);
/// The first row of `to` becomes the sum of those of `of`.
void launch_norm_totals(const NormTable& of, const NormGrid& grid, const NormTable& to, cudaStream_t stream);

}  // namespace pipewright

#include "runtime/cuda/cross_entropy.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "graph/error.h"
#include "runtime/cuda/kernels.h"

namespace pipewright {
namespace {

template <typename S>
ScoreRows<S> rows_of(const CrossEntropy& of) {
  const at::Tensor& scores = of.scores;
  PW_CHECK(scores.dim() == 2 && scores.stride(1) == 1 && of.labels.is_contiguous() &&
               of.labels.numel() == scores.size(0) && of.log_sums.is_contiguous() &&
               of.log_sums.numel() == scores.size(0),
           "a cross entropy of scores " << scores.sizes() << " with labels " << of.labels.sizes());
  PW_CHECK_LE(scores.size(0), int64_t{INT32_MAX});  // blocks of a launch
  return {scores.const_data_ptr<S>(), scores.stride(0), scores.size(1), of.labels.const_data_ptr<int64_t>(),
          of.ignored};
}

// run(S, stream) for the dtype S of the scores.
template <typename Run>
void dispatch(const CrossEntropy& of, const Run& run) {
  const c10::DeviceGuard guard(of.scores.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(of.scores.device().index()).stream();
  switch (of.scores.scalar_type()) {
    case at::kFloat:
      return run(float{}, stream);
    case at::kBFloat16:
      return run(c10::BFloat16{}, stream);
    default:
      PW_CHECK(false, "no cross entropy of scores of " << of.scores.scalar_type());
  }
}

}  // namespace

void cross_entropy_on_device(const CrossEntropy& of, const at::Tensor& loss) {
  dispatch(of, [&](auto number, cudaStream_t stream) {
    const auto rows = rows_of<decltype(number)>(of);
    const int64_t count = of.scores.size(0);
    const bool by_row = of.reduction == at::Reduction::None;
    const at::Tensor losses = by_row ? loss : at::empty_like(of.log_sums);
    launch_row_losses(rows, count, of.log_sums.data_ptr<float>(), losses.data_ptr<float>(), stream);
    if (by_row) return;
    launch_sum_of_losses(losses.const_data_ptr<float>(), rows.labels, of.ignored, count,
                         of.reduction == at::Reduction::Mean, loss.data_ptr<float>(),
                         of.asking.data_ptr<float>(), stream);
  });
}

void cross_entropy_backward_on_device(const CrossEntropy& of, const at::Tensor& loss_gradient,
                                      const at::Tensor& scores_gradient) {
  PW_CHECK(scores_gradient.size(0) == of.scores.size(0) && scores_gradient.size(1) >= of.scores.size(1) &&
               scores_gradient.is_contiguous() && loss_gradient.is_contiguous(),
           "a gradient " << scores_gradient.sizes() << " of scores " << of.scores.sizes());
  dispatch(of, [&](auto number, cudaStream_t stream) {
    using S = decltype(number);
    const LossGradient of_loss{
        loss_gradient.const_data_ptr<float>(), of.reduction == at::Reduction::None,
        of.reduction == at::Reduction::Mean ? of.asking.const_data_ptr<float>() : nullptr};
    launch_score_gradients(rows_of<S>(of), of.scores.size(0), of.log_sums.const_data_ptr<float>(), of_loss,
                           scores_gradient.data_ptr<S>(), scores_gradient.size(1), stream);
  });
}

}  // namespace pipewright

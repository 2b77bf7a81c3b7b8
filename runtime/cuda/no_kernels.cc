// Stands in for kernels.cu where there is no nvcc.
#include "graph/error.h"
#include "runtime/cuda/kernels.h"

namespace pipewright {
namespace {

[[noreturn]] void missing() {
  throw RunError("this CUDA plug-in was built without nvcc and has no kernels",
                 "install the CUDA toolkit of LibTorch's version (or scripts/setup --cuda), and build again");
}

}  // namespace

bool has_kernels() { return false; }

template <typename S>
void launch_step(const StepTable<S>&, const SgdRule<typename Computed<S>::Type>&, cudaStream_t) {
  missing();
}
template <typename S>
void launch_step(const StepTable<S>&, const AdamRule<typename Computed<S>::Type>&, cudaStream_t) {
  missing();
}
template <typename S>
void launch_step(const StepTable<S>&, const LionRule<typename Computed<S>::Type>&, cudaStream_t) {
  missing();
}
template void launch_step(const StepTable<float>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const SgdRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<float>&, const AdamRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const AdamRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const AdamRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const AdamRule<float>&, cudaStream_t);
template void launch_step(const StepTable<float>&, const LionRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const LionRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const LionRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const LionRule<float>&, cudaStream_t);
void launch_copy(const CopyTable&, cudaStream_t) { missing(); }

template <typename S>
void launch_row_losses(const ScoreRows<S>&, int64_t, float*, float*, cudaStream_t) {
  missing();
}
void launch_sum_of_losses(const float*, const int64_t*, int64_t, int64_t, bool, float*, float*,
                          cudaStream_t) {
  missing();
}
template <typename S>
void launch_score_gradients(const ScoreRows<S>&, int64_t, const float*, const LossGradient&, S*, int64_t,
                            cudaStream_t) {
  missing();
}
template void launch_row_losses(const ScoreRows<float>&, int64_t, float*, float*, cudaStream_t);
template void launch_row_losses(const ScoreRows<c10::BFloat16>&, int64_t, float*, float*, cudaStream_t);
template void launch_score_gradients(const ScoreRows<float>&, int64_t, const float*, const LossGradient&,
                                     float*, int64_t, cudaStream_t);
template void launch_score_gradients(const ScoreRows<c10::BFloat16>&, int64_t, const float*,
                                     const LossGradient&, c10::BFloat16*, int64_t, cudaStream_t);

void launch_norm_chunks(const NormRows&, const NormGrid&, const NormTable&, cudaStream_t) { missing(); }
void launch_norm_totals(const NormTable&, const NormGrid&, const NormTable&, cudaStream_t) { missing(); }

}  // namespace pipewright

#include "runtime/cuda/check.h"
#include "runtime/cuda/kernels.h"

namespace pipewright {
namespace {

// Adds the threads' sums pairwise, in an order that depends on nothing. Result in thread 0.
__device__ double sum_of_block(double mine) {
  __shared__ double sums[kBlockThreads];
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  return sums[0];
}

template <typename S, typename Rule>
__global__ void __launch_bounds__(kBlockThreads)
    step_kernel(const __grid_constant__ StepTable<S> table, const __grid_constant__ Rule rule) {
  const auto chunk = static_cast<int32_t>(blockIdx.x);
  const GradientsSeen seen = step_chunk(table, rule, chunk, static_cast<int>(threadIdx.x), kBlockThreads);
  if (table.not_finite != nullptr) {
    const int any = __syncthreads_or(seen.finite ? 0 : 1);
    if (any != 0 && threadIdx.x == 0) {
      const int32_t tensor = place_of(table.chunks, chunk, kChunkElements<S>).tensor;
      atomicMax(table.not_finite, table.index[tensor] + 1);
    }
  }
  if (table.square_sums != nullptr) {
    const double sum = sum_of_block(seen.square_sum);
    if (threadIdx.x == 0) table.square_sums[chunk] = sum;
  }
}

__global__ void __launch_bounds__(kBlockThreads) copy_kernel(const __grid_constant__ CopyTable table) {
  copy_chunk(table, static_cast<int32_t>(blockIdx.x), static_cast<int>(threadIdx.x), kBlockThreads);
}

template <typename S, typename Rule>
void launch(const StepTable<S>& table, const Rule& rule, cudaStream_t stream) {
  static_assert(sizeof table + sizeof rule <= 32764, "CUDA's limit of a kernel's arguments");
  if (table.chunks.count() == 0) return;
  step_kernel<<<static_cast<unsigned>(table.chunks.count()), kBlockThreads, 0, stream>>>(table, rule);
  PW_CUDA(cudaGetLastError());
}

}  // namespace

bool has_kernels() { return true; }

template <typename S>
void launch_step(const StepTable<S>& table, const SgdRule<typename Computed<S>::Type>& rule,
                 cudaStream_t stream) {
  launch(table, rule, stream);
}

template <typename S>
void launch_step(const StepTable<S>& table, const AdamRule<typename Computed<S>::Type>& rule,
                 cudaStream_t stream) {
  launch(table, rule, stream);
}

template void launch_step(const StepTable<float>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const SgdRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const SgdRule<float>&, cudaStream_t);
template void launch_step(const StepTable<float>&, const AdamRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const AdamRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const AdamRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const AdamRule<float>&, cudaStream_t);

void launch_copy(const CopyTable& table, cudaStream_t stream) {
  static_assert(sizeof table <= 32764, "CUDA's limit of a kernel's arguments");
  if (table.chunks.count() == 0) return;
  copy_kernel<<<static_cast<unsigned>(table.chunks.count()), kBlockThreads, 0, stream>>>(table);
  PW_CUDA(cudaGetLastError());
}

}  // namespace pipewright

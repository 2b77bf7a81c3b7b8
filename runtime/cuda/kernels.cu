#include <cassert>

#include "runtime/cuda/check.h"
#include "runtime/cuda/kernels.h"

namespace pipewright {
namespace {

// Joins what every `apart`-th thread has, pairwise, in an order that depends on nothing. Results in the first
// `apart` threads. `all` has a place for each thread, and may be used again.
template <unsigned apart = 1, typename T, typename Join>
__device__ T joined_of_block(T* all, const T& mine, const Join& join) {
  all[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = kBlockThreads / 2; step >= apart; step /= 2) {
    if (threadIdx.x < step) all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + step]);
    __syncthreads();
  }
  return all[threadIdx.x % apart];
}

__device__ double sum_of_block(double mine) {
  __shared__ double sums[kBlockThreads];
  return joined_of_block(sums, mine, [](double a, double b) { return a + b; });
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

template <typename S>
__global__ void __launch_bounds__(kBlockThreads)
    row_loss_kernel(const ScoreRows<S> rows, float* log_sums, float* losses) {
  const int64_t i = blockIdx.x;
  if (!rows.asks(i)) {
    if (threadIdx.x == 0) log_sums[i] = losses[i] = 0;
    return;
  }
  __shared__ float places[kBlockThreads][2];  // no constructors in shared memory
  auto* const sums = reinterpret_cast<ExponentialSum*>(places);
  const ExponentialSum all =
      joined_of_block(sums, sum_share(rows, i, static_cast<int>(threadIdx.x), kBlockThreads),
                      [](const ExponentialSum& a, const ExponentialSum& b) { return both(a, b); });
  if (threadIdx.x > 0) return;
  assert(rows.label_exists(i) && "a label is no class");
  log_sums[i] = log_sum(all);
  losses[i] = row_loss(rows, i, log_sums[i]);
}

__global__ void __launch_bounds__(kBlockThreads)
    loss_sum_kernel(const float* losses, const int64_t* labels, int64_t ignored, int64_t count, bool mean,
                    float* loss, float* asking) {
  double sum = 0;
  double asks = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlockThreads) {
    sum += losses[i];
    asks += labels[i] != ignored ? 1 : 0;
  }
  sum = sum_of_block(sum);
  __syncthreads();
  asks = sum_of_block(asks);
  if (threadIdx.x > 0) return;
  *loss = static_cast<float>(mean ? sum / asks : sum);
  *asking = static_cast<float>(asks);
}

template <typename S>
__global__ void __launch_bounds__(kBlockThreads)
    score_gradient_kernel(const ScoreRows<S> rows, const float* log_sums, const LossGradient of_loss, S* to,
                          int64_t columns) {
  const int64_t i = blockIdx.x;
  const auto thread = static_cast<int>(threadIdx.x);
  S* const row = to + i * columns;
  if (!rows.asks(i)) return zero_share(row, columns, thread, kBlockThreads);
  float factor = of_loss.gradient[of_loss.by_row ? i : 0];
  if (of_loss.asking != nullptr) factor /= *of_loss.asking;
  gradient_share(rows, i, log_sums[i], factor, row, thread, kBlockThreads);
  zero_share(row + rows.classes, columns - rows.classes, thread, kBlockThreads);
}

// Row `i` of the table: the sums of the threads.
__device__ void write_sums_of_block(const NormTable& to, int64_t i, const NormSums& mine) {
  __shared__ NormSums sums[kBlockThreads];
  const NormSums all = joined_of_block<kStripePacks>(
      sums, mine, [](const NormSums& a, const NormSums& b) { return both(a, b); });
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kStripePacks) write_sums(to, i, column_of(blockIdx.x, thread), all);
}

__global__ void __launch_bounds__(kBlockThreads, kNormBlocksAtOnce)
    norm_chunk_kernel(const NormRows of, const NormTable to) {
  const auto thread = static_cast<int>(threadIdx.x);
  write_sums_of_block(to, blockIdx.y, chunk_share(of, blockIdx.x, blockIdx.y, gridDim.y, thread));
}

__global__ void __launch_bounds__(kBlockThreads) norm_total_kernel(const NormTable of, const NormTable to) {
  write_sums_of_block(to, 0, total_share(of, blockIdx.x, static_cast<int>(threadIdx.x)));
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

template <typename S>
void launch_step(const StepTable<S>& table, const LionRule<typename Computed<S>::Type>& rule,
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
template void launch_step(const StepTable<float>&, const LionRule<float>&, cudaStream_t);
template void launch_step(const StepTable<double>&, const LionRule<double>&, cudaStream_t);
template void launch_step(const StepTable<c10::BFloat16>&, const LionRule<float>&, cudaStream_t);
template void launch_step(const StepTable<c10::Half>&, const LionRule<float>&, cudaStream_t);

void launch_copy(const CopyTable& table, cudaStream_t stream) {
  static_assert(sizeof table <= 32764, "CUDA's limit of a kernel's arguments");
  if (table.chunks.count() == 0) return;
  copy_kernel<<<static_cast<unsigned>(table.chunks.count()), kBlockThreads, 0, stream>>>(table);
  PW_CUDA(cudaGetLastError());
}

template <typename S>
void launch_row_losses(const ScoreRows<S>& rows, int64_t count, float* log_sums, float* losses,
                       cudaStream_t stream) {
  if (count == 0) return;
  row_loss_kernel<<<static_cast<unsigned>(count), kBlockThreads, 0, stream>>>(rows, log_sums, losses);
  PW_CUDA(cudaGetLastError());
}

void launch_sum_of_losses(const float* losses, const int64_t* labels, int64_t ignored, int64_t count,
                          bool mean, float* loss, float* asking, cudaStream_t stream) {
  loss_sum_kernel<<<1, kBlockThreads, 0, stream>>>(losses, labels, ignored, count, mean, loss, asking);
  PW_CUDA(cudaGetLastError());
}

template <typename S>
void launch_score_gradients(const ScoreRows<S>& rows, int64_t count, const float* log_sums,
                            const LossGradient& of_loss, S* to, int64_t columns, cudaStream_t stream) {
  if (count == 0) return;
  score_gradient_kernel<<<static_cast<unsigned>(count), kBlockThreads, 0, stream>>>(rows, log_sums, of_loss,
                                                                                    to, columns);
  PW_CUDA(cudaGetLastError());
}

void launch_norm_chunks(const NormRows& of, const NormGrid& grid, const NormTable& to, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(grid.stripes), static_cast<unsigned>(grid.chunks));
  norm_chunk_kernel<<<blocks, kBlockThreads, 0, stream>>>(of, to);
  PW_CUDA(cudaGetLastError());
}

void launch_norm_totals(const NormTable& of, const NormGrid& grid, const NormTable& to, cudaStream_t stream) {
  norm_total_kernel<<<static_cast<unsigned>(grid.stripes), kBlockThreads, 0, stream>>>(of, to);
  PW_CUDA(cudaGetLastError());
}

template void launch_row_losses(const ScoreRows<float>&, int64_t, float*, float*, cudaStream_t);
template void launch_row_losses(const ScoreRows<c10::BFloat16>&, int64_t, float*, float*, cudaStream_t);
template void launch_score_gradients(const ScoreRows<float>&, int64_t, const float*, const LossGradient&,
                                     float*, int64_t, cudaStream_t);
template void launch_score_gradients(const ScoreRows<c10::BFloat16>&, int64_t, const float*,
                                     const LossGradient&, c10::BFloat16*, int64_t, cudaStream_t);

}  // namespace pipewright

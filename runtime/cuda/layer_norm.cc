#include "runtime/cuda/layer_norm.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "graph/error.h"
#include "runtime/cuda/kernels.h"

namespace pipewright {

void layer_norm_weight_gradients_on_device(const LayerNorm& of, const at::Tensor& weight_gradient,
                                           const at::Tensor& bias_gradient) {
  const at::Tensor& input = of.input;
  PW_CHECK(input.dim() == 2 && input.is_contiguous() && of.gradient.is_contiguous() &&
               of.gradient.sizes() == input.sizes() && of.mean.is_contiguous() && of.rstd.is_contiguous() &&
               of.mean.numel() == input.size(0) && of.rstd.numel() == input.size(0),
           "a layer norm of " << input.sizes() << " with a gradient " << of.gradient.sizes());
  const int64_t rows = input.size(0), columns = input.size(1);
  for (const at::Tensor& made : {weight_gradient, bias_gradient})
    PW_CHECK(made.is_contiguous() && made.dim() == 1 && made.size(0) == columns,
             "a gradient " << made.sizes() << " of a layer norm of " << input.sizes());
  const c10::DeviceGuard guard(input.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(input.device().index()).stream();
  const NormRows all{input.const_data_ptr<float>(),
                     of.gradient.const_data_ptr<float>(),
                     of.mean.const_data_ptr<float>(),
                     of.rstd.const_data_ptr<float>(),
                     rows,
                     columns};
  const NormGrid grid = norm_grid(rows, columns);
  const NormTable made{weight_gradient.data_ptr<float>(), bias_gradient.data_ptr<float>(), 1, columns};
  if (grid.chunks == 1) return launch_norm_chunks(all, grid, made, stream);
  const at::Tensor sums = at::empty({2, grid.chunks, columns}, input.options());
  auto* const first = sums.data_ptr<float>();
  const NormTable chunks{first, first + grid.chunks * columns, grid.chunks, columns};
  launch_norm_chunks(all, grid, chunks, stream);
  launch_norm_totals(chunks, grid, made, stream);
}

}  // namespace pipewright

// The kernels of the plug-in, for sources that are not compiled by nvcc.
#pragma once

#include <cuda_runtime_api.h>

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
void launch_copy(const CopyTable& table, cudaStream_t stream);

}  // namespace pipewright

// Calls of CUDA that may fail.
#pragma once

#include <cuda_runtime_api.h>

#include "graph/error.h"

namespace pipewright {

inline void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // an error of the past is not found again by the next call
  throw RunError(std::string("CUDA: ") + call + ": " + cudaGetErrorString(status));
}

}  // namespace pipewright

#define PW_CUDA(call) ::pipewright::check_cuda((call), #call)

#include "runtime/step_kernels.h"

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pipewright {
namespace {

// One set of loops for each instruction set.
namespace baseline {
#include "runtime/step_kernels_body.h"
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PIPEWRIGHT_WIDE_KERNELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "runtime/step_kernels_body.h"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")
namespace avx512 {
#include "runtime/step_kernels_body.h"
}
#pragma GCC pop_options
#endif

enum class Width { kBaseline, kAvx2, kAvx512 };

Width width() {
#if defined(PIPEWRIGHT_WIDE_KERNELS)
  static const Width width = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Width::kBaseline;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return wide ? Width::kAvx512 : Width::kAvx2;
  }();
  return width;
#else
  return Width::kBaseline;
#endif
}

}  // namespace

template <typename T>
void sgd_step(const SgdFactors<T>& f, Momentum momentum, bool decay, const StepArrays<T>& a, int64_t begin,
              int64_t end, Stores stores) {
  switch (width()) {
#if defined(PIPEWRIGHT_WIDE_KERNELS)
    case Width::kAvx512:
      return avx512::sgd_step(f, momentum, decay, a, begin, end, stores);
    case Width::kAvx2:
      return avx2::sgd_step(f, momentum, decay, a, begin, end, stores);
#endif
    default:
      return baseline::sgd_step(f, momentum, decay, a, begin, end, stores);
  }
}

template <typename T>
void adam_step(const AdamFactors<T>& f, Decay decay, const StepArrays<T>& a, int64_t begin, int64_t end,
               Stores stores) {
  switch (width()) {
#if defined(PIPEWRIGHT_WIDE_KERNELS)
    case Width::kAvx512:
      return avx512::adam_step(f, decay, a, begin, end, stores);
    case Width::kAvx2:
      return avx2::adam_step(f, decay, a, begin, end, stores);
#endif
    default:
      return baseline::adam_step(f, decay, a, begin, end, stores);
  }
}

template void sgd_step(const SgdFactors<float>&, Momentum, bool, const StepArrays<float>&, int64_t, int64_t,
                       Stores);
template void sgd_step(const SgdFactors<double>&, Momentum, bool, const StepArrays<double>&, int64_t, int64_t,
                       Stores);
template void adam_step(const AdamFactors<float>&, Decay, const StepArrays<float>&, int64_t, int64_t, Stores);
template void adam_step(const AdamFactors<double>&, Decay, const StepArrays<double>&, int64_t, int64_t,
                        Stores);

}  // namespace pipewright

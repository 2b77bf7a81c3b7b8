#include "runtime/update/step_kernels.h"

#include <cstddef>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pipewright {
namespace {

// One set of loops for each instruction set.
namespace baseline {
#include "runtime/update/step_kernels_body.inc"
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PIPEWRIGHT_WIDE_KERNELS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#include "runtime/update/step_kernels_body.inc"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw")
namespace avx512 {
#include "runtime/update/step_kernels_body.inc"
}
#pragma GCC pop_options
#endif

#if defined(PIPEWRIGHT_WIDE_KERNELS)
enum class Width { kBaseline, kAvx2, kAvx512 };

Width width() {
  static const Width width = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Width::kBaseline;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return wide ? Width::kAvx512 : Width::kAvx2;
  }();
  return width;
}
#endif

}  // namespace

// Calls one of the three sets.
#if defined(PIPEWRIGHT_WIDE_KERNELS)
#define PIPEWRIGHT_WIDEST(call) \
  switch (width()) {            \
    case Width::kAvx512:        \
      return avx512::call;      \
    case Width::kAvx2:          \
      return avx2::call;        \
    case Width::kBaseline:      \
      break;                    \
  }                             \
  return baseline::call
#else
#define PIPEWRIGHT_WIDEST(call) return baseline::call
#endif

template <typename T>
bool sgd_step(const SgdFactors<T>& f, Momentum momentum, bool decay, const StepArrays<T>& a, int64_t begin,
              int64_t end, Stores stores, const DelayedStep<T>& delayed) {
  PIPEWRIGHT_WIDEST(sgd_step(f, momentum, decay, a, begin, end, stores, delayed));
}

template <typename T>
bool adam_step(const AdamFactors<T>& f, Decay decay, const StepArrays<T>& a, int64_t begin, int64_t end,
               Stores stores, const DelayedStep<T>& delayed) {
  PIPEWRIGHT_WIDEST(adam_step(f, decay, a, begin, end, stores, delayed));
}

template <typename T>
bool lion_step(const LionFactors<T>& f, const StepArrays<T>& a, int64_t begin, int64_t end, Stores stores,
               const DelayedStep<T>& delayed) {
  PIPEWRIGHT_WIDEST(lion_step(f, a, begin, end, stores, delayed));
}

template <typename Bits>
bool all_finite(const Bits* numbers, int64_t count, Bits exponent) {
  PIPEWRIGHT_WIDEST(all_finite(numbers, count, exponent));
}

template <typename T>
double square_sum(const T* numbers, int64_t count) {
  PIPEWRIGHT_WIDEST(square_sum(numbers, count));
}

template <typename T>
void add_squares(const T* numbers, int64_t count, double* sums) {
  PIPEWRIGHT_WIDEST(add_squares(numbers, count, sums));
}

template <typename T>
double change_square_sum(const AdafactorRow<T>& row, int64_t count) {
  PIPEWRIGHT_WIDEST(change_square_sum(row, count));
}

template <typename T>
void adafactor_step(const AdafactorRow<T>& row, int64_t count, const T* old, T* next, T keep, T rate) {
  PIPEWRIGHT_WIDEST(adafactor_step(row, count, old, next, keep, rate));
}

template bool sgd_step(const SgdFactors<float>&, Momentum, bool, const StepArrays<float>&, int64_t, int64_t,
                       Stores, const DelayedStep<float>&);
template bool sgd_step(const SgdFactors<double>&, Momentum, bool, const StepArrays<double>&, int64_t, int64_t,
                       Stores, const DelayedStep<double>&);
template bool adam_step(const AdamFactors<float>&, Decay, const StepArrays<float>&, int64_t, int64_t, Stores,
                        const DelayedStep<float>&);
template bool adam_step(const AdamFactors<double>&, Decay, const StepArrays<double>&, int64_t, int64_t,
                        Stores, const DelayedStep<double>&);
template bool lion_step(const LionFactors<float>&, const StepArrays<float>&, int64_t, int64_t, Stores,
                        const DelayedStep<float>&);
template bool lion_step(const LionFactors<double>&, const StepArrays<double>&, int64_t, int64_t, Stores,
                        const DelayedStep<double>&);
template bool all_finite(const uint16_t*, int64_t, uint16_t);
template bool all_finite(const uint32_t*, int64_t, uint32_t);
template bool all_finite(const uint64_t*, int64_t, uint64_t);
template double square_sum(const float*, int64_t);
template double square_sum(const double*, int64_t);

template void add_squares(const float*, int64_t, double*);
template void add_squares(const double*, int64_t, double*);
template double change_square_sum(const AdafactorRow<float>&, int64_t);
template double change_square_sum(const AdafactorRow<double>&, int64_t);
template void adafactor_step(const AdafactorRow<float>&, int64_t, const float*, float*, float, float);
template void adafactor_step(const AdafactorRow<double>&, int64_t, const double*, double*, double, double);

}  // namespace pipewright

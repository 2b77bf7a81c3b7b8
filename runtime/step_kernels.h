// Update rules over arrays: one pass that reads the old weights and writes the new ones, vectorised.
#pragma once

#include <cstdint>

#include "runtime/step_arithmetic.h"

namespace pipewright {

/// `next` may equal `old`; otherwise no two arrays overlap. 16-byte alignment of `next` allows streaming.
template <typename T>
struct StepArrays {
  const T* old;
  const T* gradient;
  T* next;
  T* first;   ///< velocity, or first moment; changed in place
  T* second;  ///< second moment; changed in place
};

/// How `next` is written. Streaming stores go round the cache: for versions that would not fit it, where an
/// ordinary store first reads the line that it overwrites.
enum class Stores { kOrdinary, kStreaming };

/// Elements [begin, end) of the arrays; T is float or double. The widest instruction set that the processor
/// has is chosen at run time; the bits are the same with all of them.
template <typename T>
void sgd_step(const SgdFactors<T>& factors, Momentum momentum, bool decay, const StepArrays<T>& arrays,
              int64_t begin, int64_t end, Stores stores);
template <typename T>
void adam_step(const AdamFactors<T>& factors, Decay decay, const StepArrays<T>& arrays, int64_t begin,
               int64_t end, Stores stores);

}  // namespace pipewright

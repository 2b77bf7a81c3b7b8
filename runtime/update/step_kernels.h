// Update rules over arrays: one pass that reads the old weights and writes the new ones, vectorised.
#pragma once

#include <cstdint>

#include "models/device/step_arithmetic.h"

namespace pipewright {

/// How `next` is written. Streaming stores go round the cache: for versions that would not fit it, where an
/// ordinary store first reads the line that it overwrites.
enum class Stores { kOrdinary, kStreaming };

/// Elements are independent, so how they are divided among threads does not change their bits.
constexpr int64_t kElementsPerThread = 1 << 15;

/// Elements [begin, end) of the arrays; T is float or double. The widest instruction set that the CPU
/// has is chosen at run time; the bits are the same with all of them. 16-byte alignment of `next` allows
/// streaming. Returns whether all gradients are finite.
template <typename T>
bool sgd_step(const SgdFactors<T>& factors, Momentum momentum, bool decay, const StepArrays<T>& arrays,
              int64_t begin, int64_t end, Stores stores, const DelayedStep<T>& delayed = {});
template <typename T>
bool adam_step(const AdamFactors<T>& factors, Decay decay, const StepArrays<T>& arrays, int64_t begin,
               int64_t end, Stores stores, const DelayedStep<T>& delayed = {});
template <typename T>
bool lion_step(const LionFactors<T>& factors, const StepArrays<T>& arrays, int64_t begin, int64_t end,
               Stores stores, const DelayedStep<T>& delayed = {});

/// sums[i] += numbers[i]^2.
template <typename T>
void add_squares(const T* numbers, int64_t count, double* sums);

/// Adafactor's changes of `count` weights in a row of a parameter. Their variances: `variances` times
/// `row`.
template <typename T>
struct AdafactorRow {
  const T* gradient;
  const T* variances;
  T row;
  T least;
};
/// The sum of the changes' squares, in square_sum()'s order.
template <typename T>
double change_square_sum(const AdafactorRow<T>& row, int64_t count);
/// next = keep * old - rate * change; `next` may equal `old`.
template <typename T>
void adafactor_step(const AdafactorRow<T>& row, int64_t count, const T* old, T* next, T keep, T rate);

/// Are all finite? `Bits`: uint32_t for float, uint64_t for double, uint16_t for the 16-bit types;
/// `exponent`: the bits that are all set in infinities and NaNs.
template <typename Bits>
bool all_finite(const Bits* numbers, int64_t count, Bits exponent);

/// Sum of squares, in an order that depends on nothing but `count`: 16 sums of every 16th element, as
/// doubles, added pairwise.
template <typename T>
double square_sum(const T* numbers, int64_t count);

}  // namespace pipewright

// Arithmetic of the cross entropy of a row of scores, in float: the only place where it is written.
//
// Plain functions of numbers, for any loop on the host or on a device. Scores are read once on the way to the
// logarithm of the sum of their exponentials (Milakov and Gimelshein, Online normalizer calculation for
// softmax, 2018). What is not finite comes out as from a softmax of the whole row: a NaN, or an infinity
// above all, makes the loss a NaN; scores of -inf have no part in it.
#pragma once

#include <cmath>

#include "models/device/step_arithmetic.h"

namespace pipewright {

/// Of some scores: the largest, and the sum of exp(score - largest).
struct ExponentialSum {
  float largest = -INFINITY;
  float sum = 0;
};

/// What exponents are taken relative to: the largest score, but -inf less -inf would be no number.
PIPEWRIGHT_ANYWHERE float base_of(float largest) { return largest == -INFINITY ? 0.0F : largest; }

template <int kCount>
PIPEWRIGHT_ANYWHERE void add(ExponentialSum& all, const float (&scores)[kCount]) {
  float largest = all.largest;
  for (int i = 0; i < kCount; ++i) largest = scores[i] > largest ? scores[i] : largest;
  const float base = base_of(largest);
  if (largest != all.largest) all.sum *= expf(all.largest - base);
  for (int i = 0; i < kCount; ++i) all.sum += expf(scores[i] - base);
  all.largest = largest;
}

PIPEWRIGHT_ANYWHERE ExponentialSum both(const ExponentialSum& a, const ExponentialSum& b) {
  const float largest = a.largest > b.largest ? a.largest : b.largest;
  const float base = base_of(largest);
  return {largest, a.sum * expf(a.largest - base) + b.sum * expf(b.largest - base)};
}

PIPEWRIGHT_ANYWHERE float log_sum(const ExponentialSum& all) { return base_of(all.largest) + logf(all.sum); }

/// The gradient of a score of a row with this log_sum(), whose loss has the gradient `factor`.
PIPEWRIGHT_ANYWHERE float score_gradient(float score, float log_sum, bool is_label, float factor) {
  return (expf(score - log_sum) - (is_label ? 1.0F : 0.0F)) * factor;
}

}  // namespace pipewright

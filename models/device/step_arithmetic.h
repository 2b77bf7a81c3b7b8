// Arithmetic of the update rules, one element at a time: the only place where it is written.
//
// docs/semantics.md gives the formulas. Every operation rounds to T, but fused(a, b, c), which rounds a b + c
// once: exactly what LibTorch's own kernels do on CPUs with fused multiply-add, and, as nothing is left
// to the compiler (contraction is off), the same bits on every CPU and for every vector width.
//
// Plain functions of numbers, for any loop on the host or on a device.
#pragma once

#if defined(__CUDACC__)
#define PIPEWRIGHT_ANYWHERE __host__ __device__ inline
#else
#define PIPEWRIGHT_ANYWHERE inline __attribute__((always_inline))
#endif

namespace pipewright {

// Builtins rather than std::fma and std::sqrt: they are compiled for the instruction set of the loop that
// they stand in.
PIPEWRIGHT_ANYWHERE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PIPEWRIGHT_ANYWHERE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
PIPEWRIGHT_ANYWHERE float root(float x) { return __builtin_sqrtf(x); }
PIPEWRIGHT_ANYWHERE double root(double x) { return __builtin_sqrt(x); }

/// The arrays of one tensor's step. `next` may equal `old`; otherwise no two arrays overlap.
template <typename T>
struct StepArrays {
  const T* old;
  const T* gradient;
  T* next;
  T* first;   ///< velocity, or first moment; changed in place
  T* second;  ///< second moment; changed in place
};

/// What a step does about gradients that are older than its weights (graph/delay_corrections.h).
enum class DelayStep {
  kNone,
  kRemember,    ///< they are not: `previous` becomes what the step changes
  kFeedBack,    ///< error-feedback
  kCompensate,  ///< dc
};
template <typename T>
struct DelayedStep {
  DelayStep kind = DelayStep::kNone;
  T* previous = nullptr;  ///< what the update before changed; changed in place
  T strength = T{0};      ///< of kCompensate
};

/// The next weight, where the rule alone would make `stepped` of w; `previous` becomes the rule's own change.
template <typename T>
PIPEWRIGHT_ANYWHERE T fed_back(T w, T stepped, T& previous) {
  const T change = stepped - w;
  const T next = stepped + (change - previous);
  previous = change;
  return next;
}
/// The gradient at weights that have changed by `change` since g was taken. Nothing is fused, so that
/// LibTorch's operators give the same bits (runtime/update/delayed_step.h).
template <typename T>
PIPEWRIGHT_ANYWHERE T compensated(T strength, T g, T change) {
  return change * g * g * strength + g;
}

/// What an SGD step of one tensor multiplies by.
template <typename T>
struct SgdFactors {
  T rate;
  T momentum;
  T weight_decay;
};

enum class Momentum { kNone, kFirst, kClassic, kNesterovFirst, kNesterov };

/// The next weight; `v` becomes the next velocity (kNone: untouched; kFirst, kNesterovFirst: not read).
template <Momentum kMomentum, bool kDecay, typename T>
PIPEWRIGHT_ANYWHERE T sgd(const SgdFactors<T>& f, T w, T g, T& v) {
  const T d = kDecay ? fused(f.weight_decay, w, g) : g;
  T u = d;
  if constexpr (kMomentum != Momentum::kNone) {
    constexpr bool kStart = kMomentum == Momentum::kFirst || kMomentum == Momentum::kNesterovFirst;
    v = kStart ? d : f.momentum * v + d;
    constexpr bool kAhead = kMomentum == Momentum::kNesterov || kMomentum == Momentum::kNesterovFirst;
    u = kAhead ? fused(f.momentum, v, d) : v;
  }
  return fused(-f.rate, u, w);
}

/// What an Adam step of one tensor multiplies by.
template <typename T>
struct AdamFactors {
  T weight_decay;  ///< Adam: decay; AdamW: 1 - rate decay
  T first;         ///< 1 - beta1
  T keep_second;   ///< beta2
  T second;        ///< 1 - beta2
  T root_second;   ///< sqrt(1 - beta2^t)
  T epsilon;
  T rate;          ///< of the first moment: rate / (1 - beta1^t)
  T ahead = T{0};  ///< NAdam: of the gradient itself
};

enum class Decay { kNone, kGradient, kWeight };

/// The next weight; `m` and `v` become the next moments. kAhead: NAdam's, whose step is also of the gradient.
template <Decay kDecay, bool kAhead, typename T>
PIPEWRIGHT_ANYWHERE T adam(const AdamFactors<T>& f, T w, T g, T& m, T& v) {
  if constexpr (kDecay == Decay::kGradient) g = fused(f.weight_decay, w, g);
  if constexpr (kDecay == Decay::kWeight) w = w * f.weight_decay;
  m = fused(f.first, g - m, m);
  v = fused(f.second * g, g, f.keep_second * v);
  const T divisor = root(v) / f.root_second + f.epsilon;
  if constexpr (kAhead) w = w + -f.ahead * g / divisor;
  return w + -f.rate * m / divisor;
}

/// What a Lion step of one tensor multiplies by.
template <typename T>
struct LionFactors {
  T keep_weight;     ///< 1 - rate decay
  T keep_direction;  ///< beta1
  T direction;       ///< 1 - beta1
  T keep_first;      ///< beta2
  T first;           ///< 1 - beta2
  T rate;
};

/// The next weight; `m` becomes the next moment.
template <typename T>
PIPEWRIGHT_ANYWHERE T lion(const LionFactors<T>& f, T w, T g, T& m) {
  const T c = fused(f.direction, g, f.keep_direction * m);
  m = fused(f.first, g, f.keep_first * m);
  const T sign = c > 0 ? T{1} : c < 0 ? T{-1} : c;  // what is no number stays none
  return fused(-f.rate, sign, f.keep_weight * w);
}

/// Adafactor's change of a weight with gradient g, before it is scaled, where `variance` is what its second
/// moment is taken for; `least`: of the divisor.
template <typename T>
PIPEWRIGHT_ANYWHERE T adafactor(T g, T variance, T least) {
  const T smallest = least * least;
  return g / root(variance < smallest ? smallest : variance);
}

}  // namespace pipewright

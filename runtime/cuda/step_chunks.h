// The update rules over the chunks of many tensors. Each thread of each block calls step_chunk(); so does a
// test, on the host, for all of them one after the other.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "models/device/step_arithmetic.h"
#include "runtime/cuda/chunks.h"

namespace pipewright {

// What numbers of S are computed as: weights of less than 32 bits are stepped as floats.
template <typename S>
struct Computed {
  using Type = float;
};
template <>
struct Computed<double> {
  using Type = double;
};

constexpr int kStepTensors = 500;  ///< of a table

/// One step of tensors of one dtype. Arrays that the rule does not use are null.
template <typename S>
struct StepTable {
  Chunks<kStepTensors> chunks;
  StepArrays<S> arrays[kStepTensors];
  c10::BFloat16* copies[kStepTensors];  ///< or null; of S = float: become the next weights, too
  int32_t index[kStepTensors];          ///< the caller's number of each tensor
  int32_t* not_finite;  ///< or null; becomes the largest index + 1 of a tensor whose gradient is not finite
  double* square_sums;  ///< or null; one per chunk: the sum of the squares of its gradients
};

/// What a step does beside.
struct StepBeside {
  c10::BFloat16* copy;  ///< or null
  bool squares;
};

/// What a thread has seen of the gradients.
struct GradientsSeen {
  bool finite = true;
  double square_sum = 0;
};

/// SGD with its momentum and decay chosen at run time, once a chunk. `T` is computed in.
template <typename T>
struct SgdRule {
  SgdFactors<T> factors;
  Momentum momentum;
  bool decay;
};

template <typename T>
struct AdamRule {
  AdamFactors<T> factors;
  Decay decay;
};

/// The copies of a pack of weights.
struct alignas(kPackBytes / 2) CopiedPack {
  c10::BFloat16 values[Pack<float>::kCount];
};
PIPEWRIGHT_ANYWHERE CopiedPack copied(const Pack<float>& weights) {
  CopiedPack copies;
  for (int j = 0; j < Pack<float>::kCount; ++j)
    copies.values[j] = static_cast<c10::BFloat16>(weights.values[j]);
  return copies;
}

template <typename T>
struct LionRule {
  LionFactors<T> factors;
};

// One thread's share of a chunk. step(w, g, m, v) is the next weight; it changes m and v. They are read and
// written where the rule has them.
template <bool kReadsFirst, bool kFirst, bool kSecond, typename S, typename Step>
PIPEWRIGHT_ANYWHERE GradientsSeen step_share(const StepArrays<S>& a, const ChunkPlace& place, int thread,
                                             int threads, const StepBeside& beside, const Step& step) {
  using T = typename Computed<S>::Type;
  GradientsSeen seen;
  const auto one = [&](S old, S gradient, S& first, S& second) {
    const T g = static_cast<T>(gradient);
    // An infinity or a NaN less itself is a NaN.
    if (!(g - g == T{0})) seen.finite = false;
    if (beside.squares) seen.square_sum += static_cast<double>(g) * static_cast<double>(g);
    T m = kReadsFirst ? static_cast<T>(first) : T{0};
    T v = kSecond ? static_cast<T>(second) : T{0};
    const T next = step(static_cast<T>(old), g, m, v);
    if constexpr (kFirst) first = static_cast<S>(m);
    if constexpr (kSecond) second = static_cast<S>(v);
    return static_cast<S>(next);
  };
  const bool packs = is_aligned(a.old) && is_aligned(a.gradient) && is_aligned(a.next) &&
                     is_aligned(a.first) && is_aligned(a.second) && is_aligned(beside.copy);  // null is
  const auto pack_step = [&](int64_t i) {
    const Pack<S> old = *reinterpret_cast<const Pack<S>*>(a.old + i);
    const Pack<S> gradient = *reinterpret_cast<const Pack<S>*>(a.gradient + i);
    Pack<S> first{};
    Pack<S> second{};
    if constexpr (kReadsFirst) first = *reinterpret_cast<const Pack<S>*>(a.first + i);
    if constexpr (kSecond) second = *reinterpret_cast<const Pack<S>*>(a.second + i);
    Pack<S> next{};
    for (int j = 0; j < Pack<S>::kCount; ++j)
      next.values[j] = one(old.values[j], gradient.values[j], first.values[j], second.values[j]);
    *reinterpret_cast<Pack<S>*>(a.next + i) = next;
    if constexpr (std::is_same_v<S, float>) {
      if (beside.copy != nullptr) *reinterpret_cast<CopiedPack*>(beside.copy + i) = copied(next);
    }
    if constexpr (kFirst) *reinterpret_cast<Pack<S>*>(a.first + i) = first;
    if constexpr (kSecond) *reinterpret_cast<Pack<S>*>(a.second + i) = second;
  };
  const auto one_step = [&](int64_t i) {
    S first{};
    S second{};
    if constexpr (kReadsFirst) first = a.first[i];
    if constexpr (kSecond) second = a.second[i];
    a.next[i] = one(a.old[i], a.gradient[i], first, second);
    if constexpr (std::is_same_v<S, float>) {
      if (beside.copy != nullptr) beside.copy[i] = static_cast<c10::BFloat16>(a.next[i]);
    }
    if constexpr (kFirst) a.first[i] = first;
    if constexpr (kSecond) a.second[i] = second;
  };
  for_my_share<S>(place.begin, place.end, thread, threads, packs, pack_step, one_step);
  return seen;
}

template <Momentum kMomentum, typename S, typename T>
PIPEWRIGHT_ANYWHERE GradientsSeen sgd_share(const SgdRule<T>& rule, const StepArrays<S>& a,
                                            const ChunkPlace& place, int thread, int threads,
                                            const StepBeside& beside) {
  constexpr bool kFirst = kMomentum != Momentum::kNone;
  constexpr bool kReads = kMomentum == Momentum::kClassic || kMomentum == Momentum::kNesterov;
  const SgdFactors<T> f = rule.factors;
  if (rule.decay) {
    return step_share<kReads, kFirst, false>(a, place, thread, threads, beside, [f](T w, T g, T& m, T&) {
      return sgd<kMomentum, true>(f, w, g, m);
    });
  }
  return step_share<kReads, kFirst, false>(a, place, thread, threads, beside, [f](T w, T g, T& m, T&) {
    return sgd<kMomentum, false>(f, w, g, m);
  });
}

template <Decay kDecay, typename S, typename T>
PIPEWRIGHT_ANYWHERE GradientsSeen adam_share(const AdamRule<T>& rule, const StepArrays<S>& a,
                                             const ChunkPlace& place, int thread, int threads,
                                             const StepBeside& beside) {
  const AdamFactors<T> f = rule.factors;
  if (f.ahead == 0) {
    return step_share<true, true, true>(a, place, thread, threads, beside, [f](T w, T g, T& m, T& v) {
      return adam<kDecay, false>(f, w, g, m, v);
    });
  }
  return step_share<true, true, true>(a, place, thread, threads, beside, [f](T w, T g, T& m, T& v) {
    return adam<kDecay, true>(f, w, g, m, v);
  });
}

template <typename S, typename T>
PIPEWRIGHT_ANYWHERE GradientsSeen rule_share(const SgdRule<T>& rule, const StepArrays<S>& a,
                                             const ChunkPlace& place, int thread, int threads,
                                             const StepBeside& beside) {
  switch (rule.momentum) {
    case Momentum::kNone:
      return sgd_share<Momentum::kNone>(rule, a, place, thread, threads, beside);
    case Momentum::kFirst:
      return sgd_share<Momentum::kFirst>(rule, a, place, thread, threads, beside);
    case Momentum::kClassic:
      return sgd_share<Momentum::kClassic>(rule, a, place, thread, threads, beside);
    case Momentum::kNesterovFirst:
      return sgd_share<Momentum::kNesterovFirst>(rule, a, place, thread, threads, beside);
    case Momentum::kNesterov:
      return sgd_share<Momentum::kNesterov>(rule, a, place, thread, threads, beside);
  }
  return {};
}

template <typename S, typename T>
PIPEWRIGHT_ANYWHERE GradientsSeen rule_share(const AdamRule<T>& rule, const StepArrays<S>& a,
                                             const ChunkPlace& place, int thread, int threads,
                                             const StepBeside& beside) {
  switch (rule.decay) {
    case Decay::kNone:
      return adam_share<Decay::kNone>(rule, a, place, thread, threads, beside);
    case Decay::kGradient:
      return adam_share<Decay::kGradient>(rule, a, place, thread, threads, beside);
    case Decay::kWeight:
      return adam_share<Decay::kWeight>(rule, a, place, thread, threads, beside);
  }
  return {};
}

template <typename S, typename T>
PIPEWRIGHT_ANYWHERE GradientsSeen rule_share(const LionRule<T>& rule, const StepArrays<S>& a,
                                             const ChunkPlace& place, int thread, int threads,
                                             const StepBeside& beside) {
  const LionFactors<T> f = rule.factors;
  return step_share<true, true, false>(a, place, thread, threads, beside,
                                       [f](T w, T g, T& m, T&) { return lion(f, w, g, m); });
}

template <typename S>
constexpr int64_t kChunkElements = kChunkBytes / static_cast<int64_t>(sizeof(S));

/// What thread `thread` of the block of chunk `chunk` does. `Rule`: one of the above, of Computed<S>.
template <typename S, typename Rule>
PIPEWRIGHT_ANYWHERE GradientsSeen step_chunk(const StepTable<S>& table, const Rule& rule, int32_t chunk,
                                             int thread, int threads) {
  const ChunkPlace place = place_of(table.chunks, chunk, kChunkElements<S>);
  return rule_share(rule, table.arrays[place.tensor], place, thread, threads,
                    {table.copies[place.tensor], table.square_sums != nullptr});
}

/// Bytes of many tensors that go elsewhere.
struct CopyTable {
  Chunks<1024> chunks;
  const unsigned char* from[1024];
  unsigned char* to[1024];
};

PIPEWRIGHT_ANYWHERE void copy_chunk(const CopyTable& table, int32_t chunk, int thread, int threads) {
  const ChunkPlace place = place_of(table.chunks, chunk, kChunkBytes);
  const unsigned char* const from = table.from[place.tensor];
  unsigned char* const to = table.to[place.tensor];
  using Byte = unsigned char;
  for_my_share<Byte>(
      place.begin, place.end, thread, threads, is_aligned(from) && is_aligned(to),
      [&](int64_t i) {
        *reinterpret_cast<Pack<Byte>*>(to + i) = *reinterpret_cast<const Pack<Byte>*>(from + i);
      },
      [&](int64_t i) { to[i] = from[i]; });
}

}  // namespace pipewright

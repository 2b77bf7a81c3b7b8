// The loops of step_kernels.cc, which includes this file once for each instruction set. No include guard.
// Everything here must be compiled for that set: nothing from the standard library.

constexpr int64_t kBlockBytes = 1024;  // of each array; small enough to ask for the next block meanwhile

/// Copies one block, of whole lines and aligned, round the cache.
inline void stream(const void* from, void* to, int64_t bytes) {
#if defined(__AVX512F__)
  for (int64_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(static_cast<char*>(to) + i),
                        _mm512_load_si512(static_cast<const char*>(from) + i));
  }
#elif defined(__SSE2__)
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(static_cast<const char*>(from) + i)));
  }
#else
  __builtin_memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

inline void prefetch(const void* address) {
  for (int64_t i = 0; i < kBlockBytes; i += 64) __builtin_prefetch(static_cast<const char*>(address) + i);
}

/// Runs loop(from, to, out) over [begin, end): at once, or a block at a time into a buffer that is streamed
/// to `next`, while `ahead(to)` fetches what the next block reads.
template <typename T, typename Loop, typename Ahead>
inline void blocks(T* next, int64_t begin, int64_t end, Stores stores, const Loop& loop, const Ahead& ahead) {
  constexpr int64_t kBlock = kBlockBytes / static_cast<int64_t>(sizeof(T));
  constexpr auto kElement = static_cast<int64_t>(sizeof(T));
  int64_t i = begin;
  // Streaming stores must be aligned, and whole lines are cheapest.
  const auto misplaced = static_cast<int64_t>(reinterpret_cast<uintptr_t>(next + begin) % 64);
  if (stores == Stores::kStreaming && misplaced % kElement == 0) {
    alignas(64) T buffer[kBlock];
    const int64_t head = misplaced == 0 ? begin : begin + (64 - misplaced) / kElement;
    if (head < end) {
      loop(i, head, next + i);
      for (i = head; i + kBlock <= end; i += kBlock) {
        ahead(i + kBlock);
        loop(i, i + kBlock, buffer);
        stream(buffer, next + i, kBlockBytes);
      }
#if defined(__SSE2__)
      _mm_sfence();
#endif
    }
  }
  loop(i, end, next + i);
}

template <Momentum kMomentum, bool kDecay, typename T>
inline void sgd_loop(const SgdFactors<T>& factors, const StepArrays<T>& a, int64_t begin, int64_t end,
                     Stores stores) {
  const auto loop = [&](int64_t from, int64_t to, T* out) {
    const SgdFactors<T> f = factors;
    const T* const old = a.old + from;
    const T* const gradient = a.gradient + from;
    T* const velocity = kMomentum == Momentum::kNone ? nullptr : a.first + from;
    const int64_t count = to - from;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      T v = 0;
      if constexpr (kMomentum == Momentum::kClassic || kMomentum == Momentum::kNesterov) v = velocity[i];
      const T next = sgd<kMomentum, kDecay>(f, old[i], gradient[i], v);
      if constexpr (kMomentum != Momentum::kNone) velocity[i] = v;
      out[i] = next;
    }
  };
  blocks(a.next, begin, end, stores, loop, [&](int64_t i) {
    prefetch(a.old + i);
    prefetch(a.gradient + i);
    if constexpr (kMomentum != Momentum::kNone) prefetch(a.first + i);
  });
}

template <Decay kDecay, typename T>
inline void adam_loop(const AdamFactors<T>& factors, const StepArrays<T>& a, int64_t begin, int64_t end,
                      Stores stores) {
  const auto loop = [&](int64_t from, int64_t to, T* out) {
    const AdamFactors<T> f = factors;
    const T* const old = a.old + from;
    const T* const gradient = a.gradient + from;
    T* const first = a.first + from;
    T* const second = a.second + from;
    const int64_t count = to - from;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      T m = first[i];
      T v = second[i];
      const T next = adam<kDecay>(f, old[i], gradient[i], m, v);
      first[i] = m;
      second[i] = v;
      out[i] = next;
    }
  };
  blocks(a.next, begin, end, stores, loop, [&](int64_t i) {
    prefetch(a.old + i);
    prefetch(a.gradient + i);
    prefetch(a.first + i);
    prefetch(a.second + i);
  });
}

template <Momentum kMomentum, typename T>
inline void sgd_decayed(const SgdFactors<T>& f, bool decay, const StepArrays<T>& a, int64_t begin,
                        int64_t end, Stores stores) {
  decay ? sgd_loop<kMomentum, true>(f, a, begin, end, stores)
        : sgd_loop<kMomentum, false>(f, a, begin, end, stores);
}

template <typename T>
void sgd_step(const SgdFactors<T>& f, Momentum momentum, bool decay, const StepArrays<T>& a, int64_t begin,
              int64_t end, Stores stores) {
  switch (momentum) {
    case Momentum::kNone:
      return sgd_decayed<Momentum::kNone>(f, decay, a, begin, end, stores);
    case Momentum::kFirst:
      return sgd_decayed<Momentum::kFirst>(f, decay, a, begin, end, stores);
    case Momentum::kClassic:
      return sgd_decayed<Momentum::kClassic>(f, decay, a, begin, end, stores);
    case Momentum::kNesterovFirst:
      return sgd_decayed<Momentum::kNesterovFirst>(f, decay, a, begin, end, stores);
    case Momentum::kNesterov:
      return sgd_decayed<Momentum::kNesterov>(f, decay, a, begin, end, stores);
  }
}

template <typename T>
void adam_step(const AdamFactors<T>& f, Decay decay, const StepArrays<T>& a, int64_t begin, int64_t end,
               Stores stores) {
  switch (decay) {
    case Decay::kNone:
      return adam_loop<Decay::kNone>(f, a, begin, end, stores);
    case Decay::kGradient:
      return adam_loop<Decay::kGradient>(f, a, begin, end, stores);
    case Decay::kWeight:
      return adam_loop<Decay::kWeight>(f, a, begin, end, stores);
  }
}

// Random numbers that are a pure function of their keys, and the same on every machine.
//
// The C++ library's engines are portable, its distributions are not; so the draws are made here, from
// integers only where that matters (permutations, labels, noise).
#pragma once

#include <cstdint>
#include <initializer_list>

namespace pipewright {

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014), started
/// from a hash of the keys. Different keys give unrelated streams. Cheap to make: one per sample is fine.
class KeyedRandom {
 public:
  explicit KeyedRandom(std::initializer_list<uint64_t> keys) {
    for (const uint64_t key : keys) state_ = mix(state_ + kGamma + mix(key + kGamma));
  }

  uint64_t next() { return mix(state_ += kGamma); }

  /// Uniform in [0, bound), without bias (Lemire: "Fast random integer generation in an interval", 2019).
  /// bound > 0.
  uint64_t below(uint64_t bound) {
    Wide product = Wide(next()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t rejected =
          -bound % bound;  // 2^64 mod bound: that many low halves would be drawn once too often
      while (static_cast<uint64_t>(product) < rejected) product = Wide(next()) * bound;
    }
    return static_cast<uint64_t>(product >> 64);
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Mean 0, variance 1, nearly normal: the sum of four uniform draws of 16 bits. One next() and no library
  /// function, so the bytes do not depend on the machine's libm.
  float bell() {
    const uint64_t bits = next();
    const auto sum =
        static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return static_cast<float>(sum - 2 * 0xffff) * kBellScale;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  static constexpr float kBellScale = 1.7320508F / 65536;  // variance of the sum: 4 * 65536^2 / 12

  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace pipewright

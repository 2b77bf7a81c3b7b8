// How one launch works on many tensors: each is cut into chunks, a block takes one chunk.
//
// The tables below travel as arguments of the kernel (32,764 bytes is CUDA's limit): nothing is uploaded,
// nothing must outlive the launch. Plain functions, for the device and for tests on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/device/step_arithmetic.h"

namespace pipewright {

/// Of one array. A GPU of 132 multiprocessors runs about a thousand blocks at a time: chunks of four times as
/// much gave a model of 25 million parameters 1.5 such waves, and so the time of two.
constexpr int64_t kChunkBytes = int64_t{1} << 14;
constexpr int kPackBytes = 16;  ///< that a thread reads or writes at a time, where aligned
constexpr int kBlockThreads = 256;

/// Which chunks belong to which tensor.
template <int kMost>
struct Chunks {
  static constexpr int kMostTensors = kMost;
  int64_t sizes[kMost];            ///< of each tensor, in elements
  int32_t first_chunk[kMost + 1];  ///< of each tensor, and the number of all chunks
  int32_t tensors = 0;

  /// False if the table is full.
  bool add(int64_t size, int64_t chunk_size) {
    if (tensors == kMost) return false;
    if (tensors == 0) first_chunk[0] = 0;
    const int64_t count = (size + chunk_size - 1) / chunk_size;
    if (first_chunk[tensors] + count > INT32_MAX) return false;
    sizes[tensors] = size;
    first_chunk[tensors + 1] = first_chunk[tensors] + static_cast<int32_t>(count);
    ++tensors;
    return true;
  }
  int32_t count() const { return tensors == 0 ? 0 : first_chunk[tensors]; }
};

/// Elements [begin, end) of a tensor of the table.
struct ChunkPlace {
  int32_t tensor;
  int64_t begin;
  int64_t end;
};

/// Of chunk 0 <= `chunk` < count(). Tensors without elements have no chunk.
template <int kMost>
PIPEWRIGHT_ANYWHERE ChunkPlace place_of(const Chunks<kMost>& chunks, int32_t chunk, int64_t chunk_size) {
  int32_t low = 0;  // the last tensor whose first chunk is not behind `chunk`
  int32_t high = chunks.tensors;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (chunks.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t begin = (chunk - chunks.first_chunk[low]) * chunk_size;
  const int64_t size = chunks.sizes[low];
  return {low, begin, begin + chunk_size < size ? begin + chunk_size : size};
}

/// Some numbers that move at once.
template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr int kCount = kPackBytes / static_cast<int>(sizeof(T));
  T values[kCount];
};

PIPEWRIGHT_ANYWHERE bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPackBytes == 0;
}

/// What thread `thread` of `threads` does of [begin, end), `begin` a multiple of the pack: pack(i) for whole
/// packs if `packs`, one(i) for the rest.
template <typename T, typename PackStep, typename OneStep>
PIPEWRIGHT_ANYWHERE void for_my_share(int64_t begin, int64_t end, int thread, int threads, bool packs,
                                      const PackStep& pack, const OneStep& one) {
  constexpr int64_t kCount = Pack<T>::kCount;
  if (packs) {
    const int64_t whole = begin + (end - begin) / kCount * kCount;
    for (int64_t i = begin + thread * kCount; i < whole; i += threads * kCount) pack(i);
    begin = whole;
  }
  for (int64_t i = begin + thread; i < end; i += threads) one(i);
}

}  // namespace pipewright

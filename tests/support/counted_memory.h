// Bytes that operator new has given out on this thread, and the most there were. Replaces operator new and
// delete: for one file of a test program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace pipewright::testing {

inline thread_local int64_t live_bytes = 0;
inline thread_local int64_t peak_bytes = 0;
inline constexpr size_t kBefore = alignof(std::max_align_t);

inline void* counted(size_t size) {
  auto* memory = static_cast<char*>(std::malloc(size + kBefore));
  if (!memory) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(memory) = size;
  live_bytes += static_cast<int64_t>(size);
  peak_bytes = std::max(peak_bytes, live_bytes);
  return memory + kBefore;
}

inline void uncounted(void* memory) noexcept {
  if (!memory) return;
  char* begin = static_cast<char*>(memory) - kBefore;
  live_bytes -= static_cast<int64_t>(*reinterpret_cast<size_t*>(begin));
  std::free(begin);
}

}  // namespace pipewright::testing

void* operator new(size_t size) { return pipewright::testing::counted(size); }
void* operator new[](size_t size) { return pipewright::testing::counted(size); }
void operator delete(void* memory) noexcept { pipewright::testing::uncounted(memory); }
void operator delete[](void* memory) noexcept { pipewright::testing::uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { pipewright::testing::uncounted(memory); }
void operator delete[](void* memory, size_t) noexcept { pipewright::testing::uncounted(memory); }

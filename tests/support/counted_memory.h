// Bytes that are allocated on this thread, and the most there were: by operator new, which this replaces, or,
// under address sanitizer, whose own it has to be, by malloc. For one file of a test program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace pipewright::testing {

inline thread_local int64_t live_bytes = 0;
inline thread_local int64_t peak_bytes = 0;

inline void count(int64_t bytes) {
  live_bytes += bytes;
  peak_bytes = std::max(peak_bytes, live_bytes);
}

}  // namespace pipewright::testing

#if defined(__SANITIZE_ADDRESS__)

// Of the sanitizer's allocator_interface.h, which GCC does not bring.
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                              void (*free_hook)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void* memory);
}

namespace pipewright::testing {

inline const int hooks_installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t bytes) { count(static_cast<int64_t>(bytes)); },
    [](const volatile void* memory) {
      count(-static_cast<int64_t>(__sanitizer_get_allocated_size(memory)));
    });

}  // namespace pipewright::testing

#else

namespace pipewright::testing {

inline constexpr size_t kBefore = alignof(std::max_align_t);

inline void* counted(size_t size) {
  auto* memory = static_cast<char*>(std::malloc(size + kBefore));
  if (!memory) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(memory) = size;
  count(static_cast<int64_t>(size));
  return memory + kBefore;
}

inline void uncounted(void* memory) noexcept {
  if (!memory) return;
  char* begin = static_cast<char*>(memory) - kBefore;
  count(-static_cast<int64_t>(*reinterpret_cast<size_t*>(begin)));
  std::free(begin);
}

}  // namespace pipewright::testing

void* operator new(size_t size) { return pipewright::testing::counted(size); }
void* operator new[](size_t size) { return pipewright::testing::counted(size); }
void operator delete(void* memory) noexcept { pipewright::testing::uncounted(memory); }
void operator delete[](void* memory) noexcept { pipewright::testing::uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { pipewright::testing::uncounted(memory); }
void operator delete[](void* memory, size_t) noexcept { pipewright::testing::uncounted(memory); }

#endif

// Misses of the last cache, as the processor counts them (perf_event_open). Linux.
#pragma once

#include <cstdint>

namespace pipewright {

/// Counts, from when it is made on, what the first thread of this process misses outside the kernel. Owns a
/// descriptor of the kernel; one that has none is no error.
class CacheCounter {
 public:
  CacheCounter();
  ~CacheCounter();
  CacheCounter(const CacheCounter&) = delete;
  CacheCounter& operator=(const CacheCounter&) = delete;

  /// Since it was made. NaN where the kernel gives no such counter: a virtual machine that shows none
  /// (ENOENT), kernel.perf_event_paranoid (EACCES), a container's filter (EPERM).
  double misses() const;

 private:
  int descriptor_ = -1;
};

/// Counters take turns where there are more of them than the processor has: what was counted in
/// `counted_nanoseconds` of `enabled_nanoseconds`, as it would be over all of them. NaN: never its turn.
double whole_count(uint64_t count, uint64_t enabled_nanoseconds, uint64_t counted_nanoseconds);

}  // namespace pipewright

#include "interference/cache_counter.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

namespace pipewright {

CacheCounter::CacheCounter() {
  perf_event_attr wanted{};
  wanted.size = sizeof wanted;
  wanted.type = PERF_TYPE_HARDWARE;
  wanted.config = PERF_COUNT_HW_CACHE_MISSES;
  wanted.exclude_kernel = 1;
  wanted.exclude_hv = 1;
  wanted.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  constexpr int kOnAnyCore = -1, kNoGroup = -1;
  descriptor_ = static_cast<int>(
      ::syscall(SYS_perf_event_open, &wanted, ::getpid(), kOnAnyCore, kNoGroup, PERF_FLAG_FD_CLOEXEC));
}

CacheCounter::~CacheCounter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

double CacheCounter::misses() const {
  struct {
    uint64_t count, enabled_nanoseconds, counted_nanoseconds;
  } told{};
  if (descriptor_ < 0 || ::read(descriptor_, &told, sizeof told) != sizeof told)
    return std::numeric_limits<double>::quiet_NaN();
  return whole_count(told.count, told.enabled_nanoseconds, told.counted_nanoseconds);
}

double whole_count(uint64_t count, uint64_t enabled_nanoseconds, uint64_t counted_nanoseconds) {
  if (counted_nanoseconds == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(count) * static_cast<double>(enabled_nanoseconds) /
         static_cast<double>(counted_nanoseconds);
}

}  // namespace pipewright

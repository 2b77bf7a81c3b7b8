// What this process has of the host's memory, beside what its tensors take (models/memory/memory_meter.h).
//
// The programs and tests that use tensors run on gperftools' tcmalloc. It keeps what tensors give back for
// the next ones, where glibc returns anything of some MB to the system at once, so that every gradient is
// paged in anew (benchmarks/RESULTS.md, Memory that stays). Sanitizers bring an allocator of their own.
#pragma once

#include <cstdint>
#include <optional>

namespace pipewright {

struct ProcessMemory {
  /// The most of the host's memory that the process had at a time: tensors, what the allocator keeps,
  /// libraries. Unknown where there is no /proc.
  std::optional<int64_t> peak_resident_bytes;
  /// Freed, and kept by the allocator for what comes next, now. Unknown with another allocator.
  std::optional<int64_t> cached_bytes;
};

ProcessMemory process_memory();

}  // namespace pipewright

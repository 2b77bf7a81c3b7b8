#include "models/memory/process_memory.h"

#include <gperftools/malloc_extension_c.h>

#include <algorithm>
#include <fstream>
#include <string>

// Null where another allocator is linked.
#pragma weak MallocExtension_GetNumericProperty

namespace pipewright {
namespace {

std::optional<int64_t> property(const char* name) {
  size_t value = 0;
  if (!MallocExtension_GetNumericProperty || !MallocExtension_GetNumericProperty(name, &value))
    return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  // Not getrusage: its maximum is that of the process that started this one, if that was larger.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) memory.peak_resident_bytes = kib * 1024;
    status.ignore(1 << 12, '\n');
  }
  // What it has of the system and has not given out, but for pages that it has handed back.
  const auto heap = property("generic.heap_size");
  const auto given_out = property("generic.current_allocated_bytes");
  const auto handed_back = property("tcmalloc.pageheap_unmapped_bytes");
  if (heap && given_out && handed_back)
    memory.cached_bytes = std::max<int64_t>(0, *heap - *given_out - *handed_back);
  return memory;
}

}  // namespace pipewright

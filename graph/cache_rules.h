// Where the values of frozen layers are kept (`--cache SPEC`), a row each. What keeps them is runtime/cache/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

enum class CacheKind { kNone, kMemory, kDisk };

struct CacheFacts {
  CacheKind kind;
  const char* name;
  const char* summary;
};
const std::vector<CacheFacts>& cache_kinds();

/// The options of "memory" and "disk" (docs/cache.md).
struct CacheRules {
  CacheKind kind = CacheKind::kNone;
  /// Of the memory that the ranks of a host share, at most; 0: none.
  int64_t memory_bytes = int64_t{2} << 30;
  /// Of one host's file, at most; 0 unless the kind is kDisk.
  int64_t disk_bytes = 0;
  /// Folder of that file, which never has a name there; "" = the run folder.
  std::string root;
  /// What float32 values are kept as: "float32", "bfloat16".
  std::string dtype = "float32";
  /// Whether values are only kept where fetching them is found to take less time than computing them.
  bool measures = true;
};
/// Of a SPEC, such as "disk:disk=20GiB". InputError for an unknown name (the nearest is named), and for
/// options that it does not have, sizes without a unit and budgets that are not more than nothing.
CacheRules cache_rules(const std::string& cache);

}  // namespace pipewright

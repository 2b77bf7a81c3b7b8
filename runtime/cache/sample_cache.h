// Values that were made of samples, kept by the processes of one host: in memory, and below it on the disk.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/cache_rules.h"
#include "runtime/cache/cache_tier.h"

namespace pipewright {

/// What, beside the sample, its values depend on.
struct CacheSpace {
  std::string data;          ///< SPEC of the data set
  std::string split;         ///< of it
  int64_t layers = 0;        ///< how deep the prefix is
  std::string weights;       ///< digest of the prefix: its nodes, parameters and buffers
  std::string augmentation;  ///< what the visit of a sample depends on; "" = on nothing
  std::string dtype;         ///< that float32 values are kept as

  CacheKey key(int64_t sample) const { return {bits_, sample}; }
  /// After the members are set.
  CacheSpace& finish();

 private:
  DigestBits bits_;
};

/// Of one process, but the bytes.
struct CacheStatistics {
  int64_t hits = 0, misses = 0;
  int64_t upgrades = 0;   ///< values of a shorter prefix that those of a longer one took the place of
  int64_t evictions = 0;  ///< out of the last tier
  int64_t damaged = 0;    ///< found with other bytes than were put: dropped, and counted among the misses
  int64_t memory_bytes = 0, disk_bytes = 0;  ///< of the host, the most there was at a time
};

/// Borrowed by whoever reads and writes; any thread may call.
class SampleCache {
 public:
  /// The first process of a host makes the tiers that `rules` ask for. A tier that cannot be made is left out
  /// and said in `remarks`; null if none is left. `run_folder`: where the file is, unless the rules say.
  static std::unique_ptr<SampleCache> make(const CacheRules& rules, const std::filesystem::path& run_folder,
                                           std::vector<std::string>& remarks);
  /// The others open them; "" is the address of none. Likewise.
  static std::unique_ptr<SampleCache> open(const std::string& address, std::vector<std::string>& remarks);
  std::string address() const;

  /// Copies the value of that size if it is there and sound.
  bool get(const CacheKey& key, std::span<std::byte> value, CacheUse use);
  /// Keeps it, unless all that is there is needed sooner; one that is there already stays.
  void put(const CacheKey& key, std::span<const std::byte> value, CacheUse use);
  /// Keeps it in the place of those of `shallower` that are there, made of parts of the same prefix.
  void upgrade(std::span<const CacheKey> shallower, const CacheKey& key, std::span<const std::byte> value,
               CacheUse use);

  CacheStatistics statistics() const;
  /// A line for each thing worth telling: a tier that got less than its budget, a value larger than a budget.
  std::vector<std::string> remarks() const;

  /// For tests: from the first tier on; null if there are not so many.
  CacheTier* tier(size_t i) const { return i < tiers_.size() ? tiers_[i].tier.get() : nullptr; }

 private:
  struct Tier {
    const char* name;  // "memory", "disk"
    std::unique_ptr<CacheTier> tier;
  };
  void put_from(size_t tier, const CacheKey& key, std::span<const std::byte> value, CacheUse use);

  std::vector<Tier> tiers_;
  std::atomic<int64_t> hits_ = 0, misses_ = 0, upgrades_ = 0, evictions_ = 0, damaged_ = 0;
  std::atomic<int64_t> too_large_bytes_ = 0;
};

}  // namespace pipewright

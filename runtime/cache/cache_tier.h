// Records of bytes in a region that the processes of a host share, with a budget.
//
// The region is cut into blocks; a record takes as many as it needs, wherever they are, so that records of
// different sizes, those of a shorter and of a longer prefix, share one budget without gaps. When there is no
// block left, the record that is needed last goes (Belady), if that is later than the newcomer's.
//
// One lock for all processes. If one is killed while it holds it, the next empties the tier: what is kept can
// always be made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/digest.h"

namespace pipewright {

/// What a record is of: a sample, and all else that its values depend on (CacheSpace, sample_cache.h).
struct CacheKey {
  DigestBits space;
  int64_t sample = 0;
  bool operator==(const CacheKey&) const = default;
};

/// When a record will be read, in minibatches of the run.
struct CacheUse {
  int64_t next = 0;
  int64_t past = 0;  ///< a record whose `next` lies before this one is not needed any more
};

struct CacheRecord {
  CacheKey key;
  int64_t next_use = 0;
  DigestBits digest;
  std::vector<std::byte> value;

  /// Are the bytes those that were put?
  bool is_sound() const;
};

enum class PutResult {
  kStored,
  kPresent,  ///< it was there already; only its next use is noted
  kRefused,  ///< all others are needed sooner
  kTooLarge  ///< for the whole budget
};
enum class GetResult { kHit, kMiss, kDamaged };

class CacheTier {
 public:
  /// `budget_bytes` holds everything, this class's own tables too. RunError as SharedRegion, and for a budget
  /// that holds no block.
  static std::unique_ptr<CacheTier> in_memory(int64_t budget_bytes);
  static std::unique_ptr<CacheTier> on_disk(const std::filesystem::path& folder, int64_t budget_bytes);
  static std::unique_ptr<CacheTier> open(const std::string& address);
  ~CacheTier();

  /// Any process or thread may call any of these at any time.
  std::string address() const;
  /// Copies the value if it is there and of that size, and notes its next use. A value whose bytes are not
  /// those that were put is dropped.
  GetResult get(const CacheKey& key, std::span<std::byte> value, CacheUse use);
  /// With `evicted`, it gets what had to go.
  PutResult put(const CacheKey& key, std::span<const std::byte> value, CacheUse use,
                std::vector<CacheRecord>* evicted = nullptr);
  /// Notes its next use if it is there.
  bool touch(const CacheKey& key, int64_t next_use);
  /// True if it was there.
  bool drop(const CacheKey& key);

  int64_t records() const;
  int64_t used_bytes() const;  ///< of records, by blocks
  int64_t most_bytes() const;  ///< the most that was
  /// "" or why there is less than the budget: the system gave no more.
  std::string shortage() const;

  /// For tests: called while the lock is held, after a part of a value has been written.
  std::function<void()> in_mid_write;
  /// For tests: changes a byte of the record.
  void damage(const CacheKey& key);

 private:
  struct Shared;
  explicit CacheTier(std::unique_ptr<Shared> shared);
  const std::unique_ptr<Shared> shared_;
};

}  // namespace pipewright

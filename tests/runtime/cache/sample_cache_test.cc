// Memory above, the disk below.
#include "runtime/cache/sample_cache.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <random>

#include "tests/support/temporary_folder.h"

using namespace pipewright;
using testing::TemporaryFolder;

namespace {

using Bytes = std::vector<std::byte>;

CacheSpace space(int64_t layers) {
  CacheSpace space;
  space.data = "synthetic-images";
  space.split = "train";
  space.layers = layers;
  space.weights = "xxh128:0";
  space.dtype = "float32";
  return space.finish();
}

Bytes value_of(int64_t layers, int64_t sample) {
  Bytes value(static_cast<size_t>(5000 + 1000 * layers));
  std::mt19937_64 random(static_cast<uint64_t>(layers * 1000 + sample));
  for (std::byte& byte : value) byte = static_cast<std::byte>(random() >> 56);
  return value;
}

CacheRules rules(const TemporaryFolder& folder, int64_t memory_bytes, int64_t disk_bytes) {
  CacheRules rules;
  rules.kind = disk_bytes > 0 ? CacheKind::kDisk : CacheKind::kMemory;
  rules.memory_bytes = memory_bytes;
  rules.disk_bytes = disk_bytes;
  rules.root = folder.path().string();
  return rules;
}

bool has(SampleCache& cache, const CacheSpace& space, int64_t layers, int64_t sample, int64_t next) {
  const Bytes right = value_of(layers, sample);
  Bytes value(right.size());
  if (!cache.get(space.key(sample), value, {next, 0})) return false;
  CHECK(value == right);
  return true;
}

}  // namespace

TEST_CASE("spaces: whatever values depend on makes another key") {
  const CacheSpace first = space(2);
  std::vector<CacheSpace> others(6, first);
  others[0].data = "synthetic-images:seed=1";
  others[1].split = "evaluation";
  others[2].layers = 3;
  others[3].weights = "xxh128:1";
  others[4].augmentation = "epoch 1";
  others[5].dtype = "bfloat16";
  for (CacheSpace& other : others) CHECK_FALSE(other.finish().key(4) == first.key(4));
  CHECK(space(2).key(4) == first.key(4));
  CHECK_FALSE(first.key(4) == first.key(5));
}

TEST_CASE("cache: what memory has no room for is on the disk, and none of it is lost") {
  TemporaryFolder folder;
  std::vector<std::string> remarks;
  const auto cache = SampleCache::make(rules(folder, 100'000, 2'000'000), "unused", remarks);
  REQUIRE(cache);
  CHECK(remarks.empty());
  const CacheSpace at = space(1);
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < 100; ++i) {
    const Bytes value = value_of(1, i);
    cache->put(at.key(i), value, {static_cast<int64_t>(random() % 1000), 0});
    cache->put(at.key(i), value, {static_cast<int64_t>(random() % 1000), 0});  // again: harmless
  }
  for (int64_t i = 0; i < 100; ++i) CHECK(has(*cache, at, 1, i, 2000));
  const CacheStatistics statistics = cache->statistics();
  CHECK(statistics.hits == 100);
  CHECK(statistics.misses == 0);
  CHECK(statistics.evictions == 0);
  CHECK(statistics.memory_bytes > 50'000);
  CHECK(statistics.memory_bytes <= 100'000);
  CHECK(statistics.disk_bytes > 500'000);
  CHECK(cache->tier(0)->records() + cache->tier(1)->records() == 100);
}

TEST_CASE("cache: a longer prefix takes the place of the shorter one, sample by sample") {
  TemporaryFolder folder;
  std::vector<std::string> remarks;
  const auto cache = SampleCache::make(rules(folder, 100'000, 300'000), "unused", remarks);
  const CacheSpace shallow = space(1), deep = space(2);
  for (int64_t i = 0; i < 20; ++i) cache->put(shallow.key(i), value_of(1, i), {i, 0});
  for (int64_t i = 0; i < 20; ++i) {
    REQUIRE(has(*cache, shallow, 1, i, 100 + i));
    cache->upgrade(std::vector{shallow.key(i)}, deep.key(i), value_of(2, i), {100 + i, 0});
    CHECK_FALSE(has(*cache, shallow, 1, i, 100 + i));
    CHECK(has(*cache, deep, 2, i, 100 + i));
  }
  CHECK(cache->statistics().upgrades == 20);
  CHECK(cache->tier(0)->records() + cache->tier(1)->records() == 20);
}

TEST_CASE("cache: budgets too small for the set hold, evictions and damage are counted") {
  TemporaryFolder folder;
  std::vector<std::string> remarks;
  const auto cache = SampleCache::make(rules(folder, 60'000, 120'000), "unused", remarks);
  const CacheSpace at = space(1);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t now = epoch * 100 + i;
      Bytes value(value_of(1, i).size());
      if (!cache->get(at.key(i), value, {now + 100, now}))
        cache->put(at.key(i), value_of(1, i), {now + 100, now});
    }
  }
  const int64_t kept = cache->tier(0)->records() + cache->tier(1)->records();
  const CacheStatistics statistics = cache->statistics();
  CHECK(statistics.memory_bytes <= 60'000);
  CHECK(statistics.disk_bytes <= 120'000);
  // In a cyclic order Belady keeps what is there: every epoch but the first finds about that.
  CHECK(kept >= 15);
  CHECK(statistics.hits >= 3 * (kept - 2));
  for (int64_t i = 0; i < 100; ++i) {
    if (!has(*cache, at, 1, i, 500)) continue;
    CacheTier& tier = *cache->tier(0);
    if (!tier.touch(at.key(i), 500)) continue;
    tier.damage(at.key(i));
    CHECK_FALSE(has(*cache, at, 1, i, 500));
    break;
  }
  CHECK(cache->statistics().damaged == 1);
}

TEST_CASE("cache: other processes' address opens the same tiers, and a tier that cannot be had is a remark") {
  TemporaryFolder folder;
  std::vector<std::string> remarks;
  const auto cache = SampleCache::make(rules(folder, 100'000, 100'000), "unused", remarks);
  const auto other = SampleCache::open(cache->address(), remarks);
  REQUIRE(other);
  CHECK(remarks.empty());
  const CacheSpace at = space(1);
  other->put(at.key(3), value_of(1, 3), {1, 0});
  CHECK(has(*cache, at, 1, 3, 2));
  CHECK(SampleCache::open("", remarks) == nullptr);

  std::ofstream(folder / "file") << "x";
  CacheRules cannot = rules(folder, 100'000, 100'000);
  cannot.root = (folder / "file").string();
  const auto memory_only = SampleCache::make(cannot, "unused", remarks);
  REQUIRE(memory_only);
  CHECK(memory_only->tier(1) == nullptr);
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks[0], Catch::Contains("training goes on without"));
  CHECK(SampleCache::make(CacheRules{}, "unused", remarks) == nullptr);

  CHECK(cache->remarks().empty());
  cache->put(at.key(9), Bytes(200'000), {1, 0});
  REQUIRE(cache->remarks().size() == 1);
  CHECK_THAT(cache->remarks()[0], Catch::Contains("more than the budget"));
}

#include "runtime/cache/sample_cache.h"

#include <functional>

#include "graph/error.h"
#include "graph/json.h"
#include "graph/units.h"

namespace pipewright {
namespace {

constexpr const char* kMemory = "memory";
constexpr const char* kDisk = "disk";

// One tier, or a remark.
std::unique_ptr<CacheTier> attempt(const std::function<std::unique_ptr<CacheTier>()>& make,
                                   std::vector<std::string>& remarks) {
  try {
    return make();
  } catch (const RunError& error) {
    remarks.push_back(std::string(error.what()) + "; training goes on without");
    return nullptr;
  }
}

}  // namespace

CacheSpace& CacheSpace::finish() {
  Json json;
  json["data"] = data;
  json["split"] = split;
  json["layers"] = layers;
  json["weights"] = weights;
  json["augmentation"] = augmentation;
  json["dtype"] = dtype;
  const std::string text = json.dump();
  Digest digest;
  digest.add(text.data(), text.size());
  bits_ = digest.bits();
  return *this;
}

std::unique_ptr<SampleCache> SampleCache::make(const CacheRules& rules,
                                               const std::filesystem::path& run_folder,
                                               std::vector<std::string>& remarks) {
  auto cache = std::make_unique<SampleCache>();
  const auto add = [&](const char* name, const std::function<std::unique_ptr<CacheTier>()>& make) {
    if (auto tier = attempt(make, remarks)) cache->tiers_.push_back({name, std::move(tier)});
  };
  if (rules.kind != CacheKind::kNone && rules.memory_bytes > 0)
    add(kMemory, [&] { return CacheTier::in_memory(rules.memory_bytes); });
  if (rules.kind == CacheKind::kDisk) {
    const std::filesystem::path folder = rules.root.empty() ? run_folder : std::filesystem::path(rules.root);
    add(kDisk, [&] { return CacheTier::on_disk(folder, rules.disk_bytes); });
  }
  return cache->tiers_.empty() ? nullptr : std::move(cache);
}

std::unique_ptr<SampleCache> SampleCache::open(const std::string& address,
                                               std::vector<std::string>& remarks) {
  if (address.empty()) return nullptr;
  auto cache = std::make_unique<SampleCache>();
  const Json tiers = Json::parse(address);
  for (const char* name : {kMemory, kDisk}) {
    if (!tiers.contains(name)) continue;
    const std::string of_tier = tiers.at(name).get<std::string>();
    if (auto tier = attempt([&] { return CacheTier::open(of_tier); }, remarks))
      cache->tiers_.push_back({name, std::move(tier)});
  }
  return cache->tiers_.empty() ? nullptr : std::move(cache);
}

std::string SampleCache::address() const {
  Json json = Json::object();
  for (const Tier& tier : tiers_) json[tier.name] = tier.tier->address();
  return json.dump();
}

bool SampleCache::get(const CacheKey& key, std::span<std::byte> value, CacheUse use) {
  for (const Tier& tier : tiers_) {
    const GetResult got = tier.tier->get(key, value, use);
    if (got == GetResult::kDamaged) ++damaged_;
    if (got != GetResult::kHit) continue;
    ++hits_;
    return true;
  }
  ++misses_;
  return false;
}

void SampleCache::put(const CacheKey& key, std::span<const std::byte> value, CacheUse use) {
  for (size_t i = 1; i < tiers_.size(); ++i)
    if (tiers_[i].tier->touch(key, use.next)) return;
  put_from(0, key, value, use);
}

// What has to go from one tier goes to the next; so does what one has no room for.
void SampleCache::put_from(size_t tier, const CacheKey& key, std::span<const std::byte> value, CacheUse use) {
  if (tier == tiers_.size()) return;
  const bool last = tier + 1 == tiers_.size();
  std::vector<CacheRecord> evicted;
  const PutResult put = tiers_[tier].tier->put(key, value, use, &evicted);
  if (last) evictions_ += static_cast<int64_t>(evicted.size());
  if (last && put == PutResult::kTooLarge) too_large_bytes_ = static_cast<int64_t>(value.size());
  for (const CacheRecord& record : evicted) {
    if (last) break;
    // Or its bytes would count as sound from now on.
    if (!record.is_sound()) {
      ++damaged_;
      continue;
    }
    put_from(tier + 1, record.key, record.value, {record.next_use, use.past});
  }
  if (put == PutResult::kRefused || put == PutResult::kTooLarge) put_from(tier + 1, key, value, use);
}

void SampleCache::upgrade(std::span<const CacheKey> shallower, const CacheKey& key,
                          std::span<const std::byte> value, CacheUse use) {
  bool was_there = false;
  for (const CacheKey& each : shallower)
    for (const Tier& tier : tiers_) was_there = tier.tier->drop(each) || was_there;
  if (was_there) ++upgrades_;
  put(key, value, use);
}

CacheStatistics SampleCache::statistics() const {
  CacheStatistics statistics{hits_, misses_, upgrades_, evictions_, damaged_, 0, 0};
  for (const Tier& tier : tiers_)
    (tier.name == kMemory ? statistics.memory_bytes : statistics.disk_bytes) = tier.tier->most_bytes();
  return statistics;
}

std::vector<std::string> SampleCache::remarks() const {
  std::vector<std::string> lines;
  for (const Tier& tier : tiers_) {
    const std::string shortage = tier.tier->shortage();
    if (!shortage.empty()) lines.push_back(std::string("cache: ") + tier.name + ": " + shortage);
  }
  if (too_large_bytes_ > 0) {
    lines.push_back("cache: what is kept of a sample has " +
                    format_bytes(static_cast<double>(too_large_bytes_)) + ", more than the budget");
  }
  return lines;
}

}  // namespace pipewright

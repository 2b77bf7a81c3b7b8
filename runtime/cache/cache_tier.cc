#include "runtime/cache/cache_tier.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <boost/interprocess/offset_ptr.hpp>
#include <boost/intrusive/set.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <tuple>
#include <utility>

#include "graph/error.h"
#include "graph/units.h"
#include "runtime/cache/shared_region.h"

namespace pipewright {
namespace {

namespace bi = boost::intrusive;

constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kStepBlocks = 4096;  // reserved at a time: 16 MiB
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int kPatienceSeconds = 10;  // for the lock: its holder copies one record

using SharedPointer = bi::void_pointer<boost::interprocess::offset_ptr<void>>;
using Hook = bi::set_member_hook<SharedPointer, bi::link_mode<bi::normal_link>>;

int64_t pages(int64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }
int64_t blocks_of(size_t bytes) {
  return std::max<int64_t>(1, pages(static_cast<int64_t>(bytes)) / kBlockBytes);
}

// A block of the region. What is said of a record stands at the first of its blocks.
struct Block {
  Hook by_key, by_use;
  CacheKey key;
  int64_t next_use;
  DigestBits digest;
  int64_t value_bytes;
  uint32_t next;  // of the record, or of the free ones
};

auto order_of(const CacheKey& key) { return std::tuple(key.space.high, key.space.low, key.sample); }
struct KeyOfBlock {
  using type = CacheKey;
  const type& operator()(const Block& block) const { return block.key; }
};
struct KeysInOrder {
  bool operator()(const CacheKey& a, const CacheKey& b) const { return order_of(a) < order_of(b); }
};
struct UsesInOrder {
  bool operator()(const Block& a, const Block& b) const {
    return std::pair(a.next_use, order_of(a.key)) < std::pair(b.next_use, order_of(b.key));
  }
};
using ByKey = bi::set<Block, bi::member_hook<Block, Hook, &Block::by_key>, bi::key_of_value<KeyOfBlock>,
                      bi::compare<KeysInOrder>>;
using ByUse = bi::set<Block, bi::member_hook<Block, Hook, &Block::by_use>, bi::compare<UsesInOrder>>;

// At the begin of the region; behind it all Blocks, then their bytes.
struct Head {
  pthread_mutex_t mutex;
  int64_t blocks;  // that there can be
  int64_t ready;   // of them the first so many may be written to
  int64_t begun;   // and so many were in use at some time
  int64_t used, most_used;
  uint32_t free;  // the first of those that are free again
  char shortage[120];
  ByKey by_key;
  ByUse by_use;
};

int64_t first_block_byte(int64_t blocks) {
  return pages(sizeof(Head)) + pages(blocks * static_cast<int64_t>(sizeof(Block)));
}

DigestBits digest_of_record(const CacheKey& key, std::span<const std::byte> value) {
  Digest digest;
  digest.add(&key, sizeof(key));
  digest.add(value.data(), value.size());
  return digest.bits();
}

}  // namespace

bool CacheRecord::is_sound() const { return digest_of_record(key, value) == digest; }

struct CacheTier::Shared {
  // Room for as many blocks as the region can hold, whatever there is of them.
  explicit Shared(SharedRegion made) : region(std::move(made)) {
    const int64_t each = kBlockBytes + static_cast<int64_t>(sizeof(Block));
    all_blocks = std::min<int64_t>((region.bytes() - pages(sizeof(Head))) / each, kNone);
    while (all_blocks > 0 && first_block_byte(all_blocks) + all_blocks * kBlockBytes > region.bytes())
      --all_blocks;
    begin = region.data() + first_block_byte(all_blocks);
  }

  SharedRegion region;
  int64_t all_blocks = 0;
  std::byte* begin = nullptr;  // of the blocks' bytes

  Head& head() const { return *reinterpret_cast<Head*>(region.data()); }
  Block& block(uint32_t i) const { return reinterpret_cast<Block*>(region.data() + pages(sizeof(Head)))[i]; }
  uint32_t number_of(const Block& first) const { return static_cast<uint32_t>(&first - &block(0)); }
  std::byte* bytes_of(uint32_t i) const { return begin + static_cast<int64_t>(i) * kBlockBytes; }

  void initialise();
  void empty() const;
  void reserve(int64_t blocks) const;
  int64_t available() const {
    return head().blocks - head().used;  // ready or not
  }
  bool make_room(int64_t blocks, CacheUse use, std::vector<CacheRecord>* evicted) const;
  uint32_t take() const;
  void free_record(Block& first) const;
  Block* find(const CacheKey& key) const;
  void set_next_use(Block& first, int64_t next_use) const;
  void read(const Block& first, std::span<std::byte> value) const;
};

namespace {

// The lock of a tier, or, if a process has held it for too long, none.
class Locked {
 public:
  Locked(Head& head, const std::function<void()>& empty) : head_(head) {
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += kPatienceSeconds;
    const int got = pthread_mutex_clocklock(&head_.mutex, CLOCK_MONOTONIC, &until);
    held_ = got == 0 || got == EOWNERDEAD;
    if (got != EOWNERDEAD) return;
    empty();
    pthread_mutex_consistent(&head_.mutex);
  }
  ~Locked() {
    if (held_) pthread_mutex_unlock(&head_.mutex);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  explicit operator bool() const { return held_; }

 private:
  Head& head_;
  bool held_ = false;
};

}  // namespace

void CacheTier::Shared::initialise() {
  const std::string budget = format_bytes(static_cast<double>(region.bytes()));
  if (all_blocks < 1) {
    throw RunError("cache: a budget of " + budget + " holds nothing",
                   "give more, e.g. --cache memory:memory=2GiB");
  }
  const std::string problem = region.reserve(0, pages(sizeof(Head)));
  if (!problem.empty()) throw RunError("cache: " + budget + ": " + problem, "free some, or give less");
  Head* head = new (region.data()) Head{};
  head->blocks = all_blocks;
  pthread_mutexattr_t shared;
  pthread_mutexattr_init(&shared);
  pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
  PW_CHECK_EQ(pthread_mutex_init(&head->mutex, &shared), 0);
  pthread_mutexattr_destroy(&shared);
  head->free = kNone;
}

// Whatever state the tables are in.
void CacheTier::Shared::empty() const {
  new (&head().by_key) ByKey();
  new (&head().by_use) ByUse();
  head().free = kNone;
  head().begun = head().used = 0;
}

// So many of those not ready yet, and some more.
void CacheTier::Shared::reserve(int64_t blocks) const {
  Head& head = this->head();
  const int64_t end = std::min(head.blocks, head.ready + std::max(blocks, kStepBlocks));
  const int64_t tables = pages(sizeof(Head)), bytes = first_block_byte(all_blocks);
  const auto entry = static_cast<int64_t>(sizeof(Block));
  std::string problem = region.reserve(tables + head.ready * entry, tables + end * entry);
  if (problem.empty()) problem = region.reserve(bytes + head.ready * kBlockBytes, bytes + end * kBlockBytes);
  if (problem.empty()) {
    for (int64_t i = head.ready; i < end; ++i) new (&block(static_cast<uint32_t>(i))) Block{};
    head.ready = end;
    return;
  }
  head.blocks = head.ready;
  std::snprintf(head.shortage, sizeof(head.shortage), "%s after %s", problem.c_str(),
                format_bytes(static_cast<double>(head.ready * kBlockBytes)).c_str());
}

bool CacheTier::Shared::make_room(int64_t blocks, CacheUse use, std::vector<CacheRecord>* evicted) const {
  Head& head = this->head();
  const int64_t free = head.begun - head.used;
  if (free + head.ready - head.begun < blocks && head.ready < head.blocks)
    reserve(blocks - (free + head.ready - head.begun));
  if (available() >= blocks) return true;
  const auto when = [&](int64_t next) { return next < use.past ? kNever : next; };
  std::vector<Block*> victims;
  int64_t found = available();
  const auto take = [&](Block& block) {
    if (found >= blocks || when(block.next_use) <= when(use.next)) return false;
    victims.push_back(&block);
    found += blocks_of(static_cast<size_t>(block.value_bytes));
    return true;
  };
  for (Block& block : head.by_use)
    if (block.next_use >= use.past || !take(block)) break;
  for (auto at = head.by_use.rbegin(); at != head.by_use.rend(); ++at)
    if (at->next_use < use.past || !take(*at)) break;
  if (found < blocks) return false;
  for (Block* victim : victims) {
    if (evicted) {
      CacheRecord& record = evicted->emplace_back();
      record.key = victim->key;
      record.next_use = victim->next_use;
      record.digest = victim->digest;
      record.value.resize(static_cast<size_t>(victim->value_bytes));
      read(*victim, record.value);
    }
    free_record(*victim);
  }
  return true;
}

uint32_t CacheTier::Shared::take() const {
  Head& head = this->head();
  ++head.used;
  head.most_used = std::max(head.most_used, head.used);
  if (head.free == kNone) return static_cast<uint32_t>(head.begun++);
  return std::exchange(head.free, block(head.free).next);
}

void CacheTier::Shared::free_record(Block& first) const {
  Head& head = this->head();
  head.by_key.erase(head.by_key.iterator_to(first));
  head.by_use.erase(head.by_use.iterator_to(first));
  uint32_t i = number_of(first);
  for (int64_t left = blocks_of(static_cast<size_t>(first.value_bytes)); left > 0; --left) {
    const uint32_t next = block(i).next;
    block(i).next = std::exchange(head.free, i);
    --head.used;
    i = next;
  }
}

Block* CacheTier::Shared::find(const CacheKey& key) const {
  const auto found = head().by_key.find(key);
  return found == head().by_key.end() ? nullptr : &*found;
}

void CacheTier::Shared::set_next_use(Block& first, int64_t next_use) const {
  ByUse& by_use = head().by_use;
  by_use.erase(by_use.iterator_to(first));
  first.next_use = next_use;
  by_use.insert(first);
}

void CacheTier::Shared::read(const Block& first, std::span<std::byte> value) const {
  uint32_t i = number_of(first);
  for (size_t at = 0; at < value.size(); at += kBlockBytes) {
    std::memcpy(value.data() + at, bytes_of(i), std::min<size_t>(kBlockBytes, value.size() - at));
    i = block(i).next;
  }
}

CacheTier::CacheTier(std::unique_ptr<Shared> shared) : shared_(std::move(shared)) {}
CacheTier::~CacheTier() = default;

std::unique_ptr<CacheTier> CacheTier::in_memory(int64_t budget_bytes) {
  auto shared = std::make_unique<Shared>(SharedRegion::in_memory(budget_bytes));
  shared->initialise();
  return std::unique_ptr<CacheTier>(new CacheTier(std::move(shared)));
}

std::unique_ptr<CacheTier> CacheTier::on_disk(const std::filesystem::path& folder, int64_t budget_bytes) {
  auto shared = std::make_unique<Shared>(SharedRegion::on_disk(folder, budget_bytes));
  shared->initialise();
  return std::unique_ptr<CacheTier>(new CacheTier(std::move(shared)));
}

std::unique_ptr<CacheTier> CacheTier::open(const std::string& address) {
  return std::unique_ptr<CacheTier>(new CacheTier(std::make_unique<Shared>(SharedRegion::open(address))));
}

std::string CacheTier::address() const { return shared_->region.address(); }

GetResult CacheTier::get(const CacheKey& key, std::span<std::byte> value, CacheUse use) {
  DigestBits digest;
  {
    const Locked locked(shared_->head(), [this] { shared_->empty(); });
    if (!locked) return GetResult::kMiss;
    Block* const found = shared_->find(key);
    if (!found || found->value_bytes != static_cast<int64_t>(value.size())) return GetResult::kMiss;
    digest = found->digest;
    shared_->read(*found, value);
    shared_->set_next_use(*found, use.next);
  }
  if (digest_of_record(key, value) == digest) return GetResult::kHit;
  drop(key);
  return GetResult::kDamaged;
}

PutResult CacheTier::put(const CacheKey& key, std::span<const std::byte> value, CacheUse use,
                         std::vector<CacheRecord>* evicted) {
  const DigestBits digest = digest_of_record(key, value);
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  if (!locked) return PutResult::kRefused;
  if (Block* const found = shared_->find(key)) {
    shared_->set_next_use(*found, use.next);
    return PutResult::kPresent;
  }
  const int64_t blocks = blocks_of(value.size());
  if (blocks > shared_->head().blocks) return PutResult::kTooLarge;
  if (!shared_->make_room(blocks, use, evicted)) return PutResult::kRefused;
  const uint32_t first = shared_->take();
  uint32_t i = first;
  for (size_t at = 0; at == 0 || at < value.size(); at += kBlockBytes) {
    if (at > 0) {
      const uint32_t next = shared_->take();
      shared_->block(i).next = next;
      i = next;
    }
    std::memcpy(shared_->bytes_of(i), value.data() + at, std::min<size_t>(kBlockBytes, value.size() - at));
    if (in_mid_write) in_mid_write();
  }
  Block& record = shared_->block(first);
  record.key = key;
  record.next_use = use.next;
  record.digest = digest;
  record.value_bytes = static_cast<int64_t>(value.size());
  shared_->head().by_key.insert(record);
  shared_->head().by_use.insert(record);
  return PutResult::kStored;
}

bool CacheTier::touch(const CacheKey& key, int64_t next_use) {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  Block* const found = locked ? shared_->find(key) : nullptr;
  if (found) shared_->set_next_use(*found, next_use);
  return found != nullptr;
}

bool CacheTier::drop(const CacheKey& key) {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  Block* const found = locked ? shared_->find(key) : nullptr;
  if (found) shared_->free_record(*found);
  return found != nullptr;
}

void CacheTier::damage(const CacheKey& key) {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  Block* const found = locked ? shared_->find(key) : nullptr;
  PW_CHECK(found, "there is no such record");
  *shared_->bytes_of(shared_->number_of(*found)) ^= std::byte{1};
}

int64_t CacheTier::records() const {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  return static_cast<int64_t>(shared_->head().by_key.size());
}
int64_t CacheTier::used_bytes() const {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  return shared_->head().used * kBlockBytes;
}
int64_t CacheTier::most_bytes() const {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  return shared_->head().most_used * kBlockBytes;
}
std::string CacheTier::shortage() const {
  const Locked locked(shared_->head(), [this] { shared_->empty(); });
  return shared_->head().shortage;
}

}  // namespace pipewright

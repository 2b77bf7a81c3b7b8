// One tier of the cache, against a std::map that evicts by Belady's rule, and between processes.
#include "runtime/cache/cache_tier.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <tuple>

#include "graph/error.h"
#include "tests/support/error_of.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace pipewright;
using testing::TemporaryFolder;

namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

using Bytes = std::vector<std::byte>;

// Of space 1, 2, ...: so many blocks, or parts of one, for each sample of it.
CacheKey key_of(uint64_t space, int64_t sample) { return {{space, 7 * space}, sample}; }
size_t bytes_in(uint64_t space) { return space * kBlock - 96 * (space % 3); }
Bytes value_of(const CacheKey& key) {
  Bytes value(bytes_in(key.space.high));
  std::mt19937_64 random(static_cast<uint64_t>(key.sample) * 31 + key.space.high);
  for (std::byte& byte : value) byte = static_cast<std::byte>(random() >> 56);
  return value;
}

// Blocks that a tier of this budget has.
int64_t blocks_in(int64_t budget_bytes) {
  const auto tier = CacheTier::in_memory(budget_bytes);
  for (int64_t i = 0; tier->put(key_of(1, i), value_of(key_of(1, i)), {5, 0}) == PutResult::kStored; ++i) {
  }
  return tier->used_bytes() / kBlock;
}

// What a tier should do, in plain words.
class Oracle {
 public:
  explicit Oracle(int64_t blocks) : blocks_(blocks) {}

  GetResult get(const CacheKey& key, CacheUse use) {
    const auto found = records_.find(order(key));
    if (found == records_.end()) return GetResult::kMiss;
    found->second.next = use.next;
    return GetResult::kHit;
  }
  PutResult put(const CacheKey& key, CacheUse use) {
    if (get(key, use) == GetResult::kHit) return PutResult::kPresent;
    const int64_t needed = static_cast<int64_t>(key.space.high);
    if (needed > blocks_) return PutResult::kTooLarge;
    const auto when = [&](int64_t next) { return next < use.past ? kNever : next; };
    // Those past first, by rising use; then those needed last.
    std::vector<std::pair<Order, Record>> order_of_leaving(records_.begin(), records_.end());
    std::sort(order_of_leaving.begin(), order_of_leaving.end(), [&](const auto& a, const auto& b) {
      const bool a_past = a.second.next < use.past, b_past = b.second.next < use.past;
      if (a_past != b_past) return a_past;
      const auto left = std::pair(a.second.next, a.first), right = std::pair(b.second.next, b.first);
      return a_past ? left < right : left > right;
    });
    int64_t free = blocks_ - used();
    std::vector<Order> leaving;
    for (const auto& [order, record] : order_of_leaving) {
      if (free >= needed || when(record.next) <= when(use.next)) break;
      leaving.push_back(order);
      free += record.blocks;
    }
    if (free < needed) return PutResult::kRefused;
    for (const Order& order : leaving) records_.erase(order);
    evicted += static_cast<int64_t>(leaving.size());
    records_[order(key)] = {use.next, needed};
    return PutResult::kStored;
  }
  bool drop(const CacheKey& key) { return records_.erase(order(key)) > 0; }
  int64_t used() const {
    int64_t sum = 0;
    for (const auto& [order, record] : records_) sum += record.blocks;
    return sum;
  }
  int64_t records() const { return static_cast<int64_t>(records_.size()); }

  int64_t evicted = 0;

 private:
  using Order = std::tuple<uint64_t, uint64_t, int64_t>;
  struct Record {
    int64_t next = 0, blocks = 0;
  };
  static Order order(const CacheKey& key) { return {key.space.high, key.space.low, key.sample}; }
  int64_t blocks_;
  std::map<Order, Record> records_;
};

// Runs `body` in a process of its own; how it ended, as waitpid() says.
template <typename Body>
pid_t started(Body body) {
  const pid_t child = fork();
  if (child != 0) return child;
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  _exit(code);
}
int ended(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Random reads and writes, checked. 0, or what went wrong.
int use_at_random(CacheTier& tier, uint64_t seed, int operations) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < operations; ++i) {
    const CacheKey key = key_of(1 + random() % 4, static_cast<int64_t>(random() % 64));
    const CacheUse use{static_cast<int64_t>(random() % 1000), static_cast<int64_t>(random() % 100)};
    const Bytes right = value_of(key);
    if (random() % 8 == 0) {
      tier.drop(key);
    } else if (random() % 2 == 0) {
      tier.put(key, right, use);
    } else {
      Bytes value(right.size());
      const GetResult got = tier.get(key, value, use);
      if (got == GetResult::kDamaged) return 2;
      if (got == GetResult::kHit && value != right) return 3;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("tier: 400 random histories go as a map that evicts what is needed last") {
  TemporaryFolder folder;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::mt19937_64 random(seed);
    const int64_t budget = 30'000 + static_cast<int64_t>(random() % 200'000);
    const auto tier =
        seed % 4 == 0 ? CacheTier::on_disk(folder.path(), budget) : CacheTier::in_memory(budget);
    Oracle oracle(blocks_in(budget));
    int64_t evicted_in_all = 0;
    for (int i = 0; i < 150; ++i) {
      const CacheKey key = key_of(1 + random() % 4, static_cast<int64_t>(random() % 24));
      const CacheUse use{static_cast<int64_t>(random() % 300), i};
      INFO("seed " << seed << " operation " << i);
      const auto what = random() % 8;
      if (what == 0) {
        REQUIRE(tier->drop(key) == oracle.drop(key));
      } else if (what < 4) {
        Bytes value(bytes_in(key.space.high));
        const GetResult got = tier->get(key, value, use);
        REQUIRE(got == oracle.get(key, use));
        if (got == GetResult::kHit) REQUIRE(value == value_of(key));
      } else {
        std::vector<CacheRecord> evicted;
        REQUIRE(tier->put(key, value_of(key), use, &evicted) == oracle.put(key, use));
        evicted_in_all += static_cast<int64_t>(evicted.size());
        for (const CacheRecord& record : evicted) {
          REQUIRE(record.is_sound());
          REQUIRE(record.value == value_of(record.key));
        }
      }
      REQUIRE(tier->records() == oracle.records());
      REQUIRE(tier->used_bytes() == oracle.used() * kBlock);
      REQUIRE(tier->most_bytes() <= budget);
      REQUIRE(evicted_in_all == oracle.evicted);
    }
  }
}

TEST_CASE("tier: what is refused leaves all others where they are") {
  const auto tier = CacheTier::in_memory(60'000);
  const int64_t blocks = blocks_in(60'000);
  for (int64_t i = 0; i < blocks; ++i) tier->put(key_of(1, i), value_of(key_of(1, i)), {10 + i, 0});
  // One of them is needed later than the newcomer, but two blocks are needed.
  CHECK(tier->put(key_of(2, 0), value_of(key_of(2, 0)), {10 + blocks - 2, 0}) == PutResult::kRefused);
  CHECK(tier->records() == blocks);
  CHECK(tier->put(key_of(2, 0), value_of(key_of(2, 0)), {10 + blocks - 3, 0}) == PutResult::kStored);
  CHECK(tier->records() == blocks - 1);
  const CacheKey large{{100, 0}, 0};
  CHECK(tier->put(large, Bytes(static_cast<size_t>(blocks + 1) * kBlock), {0, 0}) == PutResult::kTooLarge);
}

TEST_CASE("tier: damaged bytes are not given out, and their record goes") {
  const auto tier = CacheTier::in_memory(1 << 20);
  const CacheKey key = key_of(3, 5);
  tier->put(key, value_of(key), {1, 0});
  Bytes value(bytes_in(3));
  CHECK(tier->get(key, value, {2, 0}) == GetResult::kHit);
  tier->damage(key);
  CHECK(tier->get(key, value, {3, 0}) == GetResult::kDamaged);
  CHECK(tier->get(key, value, {4, 0}) == GetResult::kMiss);
  CHECK(tier->used_bytes() == 0);
  CHECK(tier->put(key, value_of(key), {4, 0}) == PutResult::kStored);
  CHECK(tier->get(key, value, {5, 0}) == GetResult::kHit);
}

TEST_CASE("tier: processes that write and read at once never see another's bytes, and the budget holds") {
  constexpr int64_t kBudget = 300'000;
  const auto tier = CacheTier::in_memory(kBudget);
  const std::string address = tier->address();
  std::vector<pid_t> children;
  for (uint64_t seed = 0; seed < 4; ++seed)
    children.push_back(started([&] { return use_at_random(*CacheTier::open(address), seed, 3000); }));
  CHECK(use_at_random(*tier, 9, 3000) == 0);
  for (const pid_t child : children) CHECK(ended(child) == 0);
  CHECK(tier->most_bytes() <= kBudget);
  CHECK(tier->records() > 0);
}

TEST_CASE("tier: processes killed in mid-write leave a cache that goes on, empty or right") {
  const auto tier = CacheTier::in_memory(300'000);
  const std::string address = tier->address();
  for (uint64_t seed = 0; seed < 25; ++seed) {
    INFO(seed);
    const pid_t other = started([&] { return use_at_random(*CacheTier::open(address), seed, 300); });
    const pid_t killed = started([&] {
      const auto mine = CacheTier::open(address);
      int left = static_cast<int>(seed * 7);
      mine->in_mid_write = [&] {
        if (left-- == 0) raise(SIGKILL);
      };
      return use_at_random(*mine, seed + 1000, 100'000);
    });
    CHECK(ended(killed) == 128 + SIGKILL);
    CHECK(use_at_random(*tier, seed + 2000, 200) == 0);
    CHECK(ended(other) == 0);
  }
}

TEST_CASE("region: no file has a name, neither while it is used nor afterwards, and old ones are swept") {
  TemporaryFolder folder;
  std::ofstream(folder / "pipewright-cache-Ab3xyZ") << "left by a process killed between two calls";
  std::ofstream(folder / "model.safetensors") << "not ours";
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()),
                         std::filesystem::directory_iterator());
  };
  {
    const auto tier = CacheTier::on_disk(folder.path(), 1 << 20);
    CHECK(files() == 1);
    CHECK(tier->put(key_of(1, 1), value_of(key_of(1, 1)), {1, 0}) == PutResult::kStored);
    CHECK(files() == 1);
    const pid_t child = started([&] {
      const auto another = CacheTier::on_disk(folder.path(), 1 << 20);
      another->put(key_of(1, 1), value_of(key_of(1, 1)), {1, 0});
      raise(SIGKILL);
      return 0;
    });
    CHECK(ended(child) == 128 + SIGKILL);
    CHECK(files() == 1);
    Bytes value(bytes_in(1));
    CHECK(tier->get(key_of(1, 1), value, {2, 0}) == GetResult::kHit);
  }
  CHECK(files() == 1);
}

TEST_CASE("region: errors say what could not be had") {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  CHECK_THAT(testing::error_of<RunError>([&] { CacheTier::on_disk(folder / "file/below", 1 << 20); }),
             Catch::Contains("file/below': Not a directory"));
  CHECK_THAT(testing::error_of<RunError>([&] { CacheTier::in_memory(5000); }),
             Catch::Contains("a budget of 4.88 KiB holds nothing"));
  CHECK_THAT(testing::error_of<RunError>([&] { CacheTier::open("nonsense"); }),
             Catch::Contains("'nonsense' is no address"));
  std::string address;
  { address = CacheTier::in_memory(1 << 20)->address(); }
  const auto another = CacheTier::in_memory(1 << 20);  // perhaps under the same number
  CHECK_THAT(testing::error_of<RunError>([&] { CacheTier::open(address); }),
             Catch::Contains("cannot be opened"));
}

TEST_CASE("region: a disk that is full ends the growth, not the process") {
  TemporaryFolder folder;
  constexpr int kCannot = 77;
  const pid_t child = started([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0)
      return kCannot;
    const auto tier = CacheTier::on_disk(folder.path(), 64 << 20);
    for (int64_t i = 0; i < 1000; ++i) tier->put(key_of(1, i), value_of(key_of(1, i)), {i, 0});
    return tier->shortage().rfind("No space left on device", 0) == 0 ? 0 : 2;
  });
  const int code = ended(child);
  if (code == kCannot) return testing::skip("no small file system can be mounted here");
  CHECK(code == 0);
}

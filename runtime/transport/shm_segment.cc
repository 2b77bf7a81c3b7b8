#include "runtime/transport/shm_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "graph/error.h"
#include "graph/json.h"

namespace pipewright {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Not the private kind: the word is shared between processes. (std::atomic's own wait() is private.)
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

constexpr size_t kPage = 4096;
size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void Bell::ring() {
  rings.fetch_add(1);
  if (sleepers.load() > 0) futex(rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Bell::sleep(uint32_t seen, std::chrono::milliseconds bound) {
  sleepers.fetch_add(1);  // from here on a ring() sees us, or has changed `rings` already
  const timespec timeout{bound.count() / 1000, bound.count() % 1000 * 1'000'000};
  futex(rings, FUTEX_WAIT, seen, &timeout);
  sleepers.fetch_sub(1);
}

std::string SegmentAddress::to_text() const {
  Json json;
  json["pid"] = pid;
  json["descriptor"] = descriptor;
  json["token"] = token;
  return json.dump();
}

SegmentAddress SegmentAddress::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    return {json.at("pid").get<int64_t>(), json.at("descriptor").get<int64_t>(),
            json.at("token").get<uint64_t>()};
  } catch (const Json::exception&) {
    throw PeerError("'" + text + "' is no address of shared memory", "do all ranks run the same version?");
  }
}

struct ShmSegment::Head {
  uint64_t token;
  alignas(64) Bell bell;
  alignas(64) std::atomic<uint32_t> closed;
};

ShmSegment::ShmSegment(int descriptor, int64_t world_size, int64_t ring_bytes)
    : descriptor_(descriptor), world_size_(world_size), ring_bytes_(ring_bytes) {
  PW_CHECK_EQ(ring_bytes % 64, 0);
  const auto ranks = static_cast<size_t>(world_size);
  bytes_ = pages(sizeof(Head)) + pages(ranks * sizeof(Ring)) + ranks * pages(static_cast<size_t>(ring_bytes));
}

ShmSegment ShmSegment::create(int64_t world_size, int64_t ring_bytes) {
  const int descriptor = memfd_create("pipewright", MFD_CLOEXEC);
  const auto fail = [&](const char* what) -> RunError {
    return RunError(std::string("shared memory: ") + what + ": " + std::strerror(errno),
                    "free some memory, or give --transport gloo");
  };
  if (descriptor < 0) throw fail("memfd_create");
  ShmSegment segment(descriptor, world_size, ring_bytes);
  if (ftruncate(descriptor, static_cast<off_t>(segment.bytes_)) != 0) throw fail("ftruncate");
  void* base = mmap(nullptr, segment.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) throw fail("mmap");
  segment.base_ = static_cast<std::byte*>(base);
  Head* head = new (base) Head{};
  std::random_device random;
  head->token = (static_cast<uint64_t>(random()) << 32) | random();
  for (int64_t sender = 0; sender < world_size; ++sender) new (&segment.ring(sender)) Ring{};
  return segment;
}

ShmSegment ShmSegment::open(const SegmentAddress& address, int64_t world_size, int64_t ring_bytes) {
  const std::string file =
      "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.descriptor);
  const auto fail = [&](const std::string& why) {
    return PeerError("shared memory of process " + std::to_string(address.pid) + ": " + why,
                     "ranks that share memory run as one user on one host (and in one container); "
                     "otherwise give --transport gloo");
  };
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw fail(file + ": " + std::strerror(errno));
  ShmSegment segment(descriptor, world_size, ring_bytes);
  if (lseek(descriptor, 0, SEEK_END) != static_cast<off_t>(segment.bytes_)) throw fail("another size");
  void* base = mmap(nullptr, segment.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) throw fail(std::string("mmap: ") + std::strerror(errno));
  segment.base_ = static_cast<std::byte*>(base);
  if (segment.head().token != address.token) throw fail("it is another process's");
  return segment;
}

ShmSegment& ShmSegment::operator=(ShmSegment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(world_size_, other.world_size_);
  std::swap(ring_bytes_, other.ring_bytes_);
  return *this;
}

ShmSegment::~ShmSegment() {
  if (base_) munmap(base_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

SegmentAddress ShmSegment::address() const { return {getpid(), descriptor_, head().token}; }
ShmSegment::Head& ShmSegment::head() const { return *reinterpret_cast<Head*>(base_); }
Bell& ShmSegment::bell() const { return head().bell; }
std::atomic<uint32_t>& ShmSegment::closed() const { return head().closed; }

Ring& ShmSegment::ring(int64_t sender) const {
  return reinterpret_cast<Ring*>(base_ + pages(sizeof(Head)))[sender];
}

std::byte* ShmSegment::data(int64_t sender) const {
  return base_ + pages(sizeof(Head)) + pages(static_cast<size_t>(world_size_) * sizeof(Ring)) +
         static_cast<size_t>(sender) * pages(static_cast<size_t>(ring_bytes_));
}

}  // namespace pipewright

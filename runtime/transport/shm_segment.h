// Memory that the ranks of one host share: what every other rank has to say to its owner.
//
// One segment a rank, made by its owner: a bell, and one ring per sender. It is anonymous memory (memfd),
// which others open through the owner's /proc entry: it has no name in any file system, and is gone with the
// last process that has it mapped, however that ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace pipewright {

/// Wakes the owner: rung after every change that it may wait for.
struct Bell {
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleepers;

  void ring();
  /// Sleeps until the bell has been rung since `seen` was read from `rings`, or `bound` is over.
  void sleep(uint32_t seen, std::chrono::milliseconds bound);
};

/// Bytes from one sender, in order. Both counters only grow; a byte's place is its number modulo the
/// capacity.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;  ///< by the sender
  alignas(64) std::atomic<uint64_t> read;     ///< by the owner
  std::atomic<uint32_t> writer_waits;         ///< for room: the owner then rings the writer's bell
};

struct SegmentAddress {
  int64_t pid = 0;
  int64_t descriptor = 0;
  uint64_t token = 0;

  std::string to_text() const;
  static SegmentAddress from_text(const std::string& text);
};

/// A mapping of a segment, the owner's or another rank's. Movable, unmaps at the end.
class ShmSegment {
 public:
  /// The owner's. `ring_bytes` per sender, a multiple of 64; memory is taken as it is first used. RunError if
  /// the system gives none.
  static ShmSegment create(int64_t world_size, int64_t ring_bytes);
  /// Another rank's, on this host. PeerError if it cannot be opened from here.
  static ShmSegment open(const SegmentAddress& address, int64_t world_size, int64_t ring_bytes);

  ShmSegment() = default;
  ShmSegment(ShmSegment&& other) noexcept { *this = std::move(other); }
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  explicit operator bool() const { return base_ != nullptr; }
  SegmentAddress address() const;  ///< the owner's: valid as long as it lives
  Bell& bell() const;
  std::atomic<uint32_t>& closed() const;  ///< not 0: the owner has left for good
  Ring& ring(int64_t sender) const;
  std::byte* data(int64_t sender) const;
  int64_t ring_bytes() const { return ring_bytes_; }

 private:
  struct Head;
  ShmSegment(int descriptor, int64_t world_size, int64_t ring_bytes);
  Head& head() const;

  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  int64_t world_size_ = 0;
  int64_t ring_bytes_ = 0;
};

}  // namespace pipewright

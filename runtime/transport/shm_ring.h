// The two ends of a ring: records of a head (tag, bytes) and the bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "runtime/transport/shm_segment.h"

namespace pipewright {

/// A message on its way out.
struct Outgoing {
  at::Tensor tensor;
  int64_t tag = 0;
  size_t pushed_bytes = 0;
  bool head_pushed = false;
  std::atomic<bool> done = false;
};

/// The sender's end of one ring. One thread at a time. Room for eight messages as large as the largest that it
/// has had, or half of the ring if that is less, is there whenever the receiver has taken all.
class RingWriter {
 public:
  /// Both outlive the writer.
  RingWriter(const ShmSegment& receiver, int64_t sender);
  /// Copies as much of the message as there is room for; true when all of it is in. Otherwise the receiver
  /// rings the writer's bell when there is room again.
  bool push(Outgoing& message);

 private:
  size_t room() const;
  size_t room_or_notice();
  void restart_if_empty(size_t needed_bytes);
  void copy_in(const std::byte* from, size_t bytes);
  void publish(size_t bytes);

  Ring* ring_;
  std::byte* data_;
  size_t capacity_;
  Bell* bell_;
  uint64_t written_ = 0;
  size_t largest_bytes_ = 0;  // of messages so far, with their heads
};

/// A message on its way in: into the receiver's tensor if it was posted, otherwise into a buffer.
struct Incoming {
  at::Tensor into;  ///< undefined: not posted when its head came
  std::unique_ptr<std::byte[]> buffer;
  size_t bytes = 0;
  bool complete = false;
  std::byte* place();
};

/// The receiver's end. One thread.
class RingReader {
 public:
  RingReader(const ShmSegment& own, int64_t sender, Bell& sender_bell);
  /// The next message of the tag will be, or is being, received into the result.
  std::shared_ptr<Incoming> post(at::Tensor into, int64_t tag);
  /// Takes in what is there. Returns whether anything was.
  bool drain();

 private:
  void begin_message();
  void copy_out(std::byte* to, size_t bytes);

  struct Stream {
    std::deque<std::shared_ptr<Incoming>> posted;   // no head yet
    std::deque<std::shared_ptr<Incoming>> arrived;  // a head, but nobody has asked
  };

  Ring* ring_;
  const std::byte* data_;
  size_t capacity_;
  Bell* writer_bell_;
  uint64_t read_ = 0;
  std::map<int64_t, Stream> streams_;  // by tag
  std::shared_ptr<Incoming> current_;  // being received
  size_t current_bytes_ = 0;           // of it, so far
};

}  // namespace pipewright

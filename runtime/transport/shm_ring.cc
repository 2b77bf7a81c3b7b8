#include "runtime/transport/shm_ring.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "graph/error.h"

namespace pipewright {
namespace {

// A head takes a cache line, and messages begin at one: heads never lie across the ring's end.
struct Head {
  int64_t tag;
  uint64_t bytes;
};
constexpr size_t kLine = 64;

// The other side is told after so many bytes: small enough for both to copy at the same time, large enough
// for the telling not to matter.
constexpr size_t kPiece = 128 << 10;

// A head with this tag: go on at the ring's beginning.
constexpr int64_t kRestart = std::numeric_limits<int64_t>::min();
// So much of a ring stays in a core's cache and address translations; beyond it a ring that is empty
// restarts. What lies behind the restart is no room until the receiver has seen it, which a receiver that
// computes does not for a while: so what lies before it must be enough for some messages.
constexpr size_t kWarmBytes = 512 << 10;
constexpr size_t kRoomForMessages = 8;

size_t padding(size_t bytes) { return (kLine - bytes % kLine) % kLine; }

}  // namespace

RingWriter::RingWriter(const ShmSegment& receiver, int64_t sender)
    : ring_(&receiver.ring(sender)),
      data_(receiver.data(sender)),
      capacity_(static_cast<size_t>(receiver.ring_bytes())),
      bell_(&receiver.bell()) {}

size_t RingWriter::room() const { return capacity_ - static_cast<size_t>(written_ - ring_->read.load()); }

size_t RingWriter::room_or_notice() {
  if (const size_t bytes = room()) return bytes;
  ring_->writer_waits = 1;
  return room();  // the reader may have looked at the notice just before
}

void RingWriter::copy_in(const std::byte* from, size_t bytes) {
  const auto at = static_cast<size_t>(written_ % capacity_);
  const size_t first = std::min(bytes, capacity_ - at);
  std::memcpy(data_ + at, from, first);
  std::memcpy(data_, from + first, bytes - first);
}

void RingWriter::restart_if_empty(size_t needed_bytes) {
  largest_bytes_ = std::max(largest_bytes_, needed_bytes);
  const auto at = static_cast<size_t>(written_ % capacity_);
  const size_t enough = std::max(kWarmBytes, std::min(kRoomForMessages * largest_bytes_, capacity_ / 2));
  if (at < enough || needed_bytes > at || ring_->read.load() != written_) return;
  const Head head{kRestart, 0};
  copy_in(reinterpret_cast<const std::byte*>(&head), sizeof head);
  written_ += capacity_ - at;
}

void RingWriter::publish(size_t bytes) {
  written_ += bytes;
  ring_->written.store(written_);
  bell_->ring();
}

bool RingWriter::push(Outgoing& message) {
  const size_t total = message.tensor.nbytes();
  const auto* bytes = static_cast<const std::byte*>(message.tensor.data_ptr());
  size_t unpublished = 0;
  if (!message.head_pushed) {
    if (room_or_notice() < kLine) return false;  // room is a multiple of a line
    restart_if_empty(kLine + total + padding(total));
    const Head head{message.tag, total};
    copy_in(reinterpret_cast<const std::byte*>(&head), sizeof head);
    written_ += kLine;  // told together with the first bytes
    unpublished = kLine;
    message.head_pushed = true;
  }
  while (message.pushed_bytes < total) {
    const size_t rest = total - message.pushed_bytes;
    const size_t available = unpublished > 0 ? room() : room_or_notice();
    size_t piece = std::min({rest, kPiece, available});
    if (piece == 0) {
      if (unpublished == 0) return false;
      publish(0);
      unpublished = 0;
      continue;
    }
    copy_in(bytes + message.pushed_bytes, piece);
    message.pushed_bytes += piece;
    // Room is a multiple of a line, so the padding of the last piece fits.
    if (message.pushed_bytes == total) piece += padding(total);
    publish(piece);
    unpublished = 0;
  }
  if (unpublished > 0) publish(0);
  return true;
}

std::byte* Incoming::place() {
  return into.defined() ? static_cast<std::byte*>(into.data_ptr()) : buffer.get();
}

RingReader::RingReader(const ShmSegment& own, int64_t sender, Bell& sender_bell)
    : ring_(&own.ring(sender)),
      data_(own.data(sender)),
      capacity_(static_cast<size_t>(own.ring_bytes())),
      writer_bell_(&sender_bell) {}

std::shared_ptr<Incoming> RingReader::post(at::Tensor into, int64_t tag) {
  Stream& stream = streams_[tag];
  if (!stream.arrived.empty()) {
    auto message = std::move(stream.arrived.front());
    stream.arrived.pop_front();
    PW_CHECK_EQ(message->bytes, into.nbytes());
    return message;
  }
  auto message = std::make_shared<Incoming>();
  message->bytes = into.nbytes();
  message->into = std::move(into);
  stream.posted.push_back(message);
  return message;
}

void RingReader::begin_message() {
  Head head;
  std::memcpy(&head, data_ + read_ % capacity_, sizeof head);
  if (head.tag == kRestart) {
    read_ += capacity_ - read_ % capacity_;
    return;
  }
  read_ += kLine;
  Stream& stream = streams_[head.tag];
  if (stream.posted.empty()) {
    current_ = std::make_shared<Incoming>();
    current_->bytes = head.bytes;
    current_->buffer = std::make_unique_for_overwrite<std::byte[]>(head.bytes);
    stream.arrived.push_back(current_);
  } else {
    current_ = std::move(stream.posted.front());
    stream.posted.pop_front();
    PW_CHECK_EQ(current_->bytes, head.bytes);
  }
  current_bytes_ = 0;
}

void RingReader::copy_out(std::byte* to, size_t bytes) {
  const auto at = static_cast<size_t>(read_ % capacity_);
  const size_t first = std::min(bytes, capacity_ - at);
  std::memcpy(to, data_ + at, first);
  std::memcpy(to + first, data_, bytes - first);
}

bool RingReader::drain() {
  bool any = false;
  while (true) {
    const auto available = static_cast<size_t>(ring_->written.load() - read_);
    if (!current_) {
      if (available == 0) return any;
      begin_message();
    } else {
      size_t piece = std::min({current_->bytes - current_bytes_, kPiece, available});
      if (piece == 0 && current_bytes_ < current_->bytes) return any;
      if (piece > 0) copy_out(current_->place() + current_bytes_, piece);
      current_bytes_ += piece;
      if (current_bytes_ == current_->bytes) {
        read_ += piece + padding(current_->bytes);
        current_->complete = true;
        current_.reset();
      } else {
        read_ += piece;
      }
    }
    any = true;
    ring_->read.store(read_);
    if (ring_->writer_waits.load() != 0 && ring_->writer_waits.exchange(0) != 0) writer_bell_->ring();
  }
}

}  // namespace pipewright

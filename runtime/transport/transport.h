// Moves tensors between ranks. Knows peers and tags, not stages.
//
// One implementation a file, one row in a table; tests/runtime/transport holds the suite that every one must
// pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pipewright {

class Packer;

/// A send or receive under way. Keeps its tensor alive.
class Request {
 public:
  virtual ~Request() = default;
  /// Returns when the tensor may be reused (send) or holds the message (receive); with a tensor of a device,
  /// for what the calling thread's current stream is given from then on: the host need not wait. PeerError
  /// names the peer if the connection breaks or the transport is aborted. Call it exactly once.
  virtual void wait() = 0;
};

/// A message under way whose tensor the transport has.
class Delivery {
 public:
  virtual ~Delivery() = default;
  /// As Request::wait(). The tensor is read only: its sender may still read it too.
  virtual at::Tensor wait() = 0;
};

/// Point-to-point messages. A message is one contiguous tensor, on the CPU or where the transport takes them;
/// its receiver gives a tensor of the same size and dtype. Messages with equal (sender, receiver, tag) arrive
/// in the order sent. Any thread may call; those of one stream (peer, tag) one at a time. After abort() or a
/// PeerError only destruction is useful.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// Returns at once. The tensor must not be changed until wait() has returned.
  virtual std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) = 0;
  /// Returns at once. The tensor must not be touched until wait() has returned.
  virtual std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) = 0;
  /// As send(), of a tensor that will never be changed.
  virtual std::unique_ptr<Request> give(at::Tensor tensor, int64_t peer, int64_t tag) {
    return send(std::move(tensor), peer, tag);
  }
  /// As receive() of what was given, into a fresh tensor or, between threads, the sender's own.
  virtual std::unique_ptr<Delivery> take(at::IntArrayRef shape, const at::TensorOptions& options,
                                         int64_t peer, int64_t tag);
  /// Replaces `flat` by its sum over `ranks`, in an order of the transport's own, and returns true; false: it
  /// has no sum of its own for them, and all_reduce_sum() adds messages up. As with wait(), the host need not
  /// wait.
  virtual bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) {
    static_cast<void>(flat), static_cast<void>(ranks), static_cast<void>(tag);
    return false;
  }
  /// Of tensors of the CPU that were sent to the peer and not yet received: what the transport holds by
  /// itself, so that their sends are over.
  virtual int64_t buffered_bytes(int64_t peer) const {
    static_cast<void>(peer);
    return 0;
  }
  /// For a peer to and from which several tensors of a device go as one message: what packs them. Null: each
  /// goes by itself. Both ends agree.
  virtual const Packer* packer(int64_t peer) const {
    static_cast<void>(peer);
    return nullptr;
  }
  /// Wakes every wait() of this rank, now and later, with a PeerError that says `why`.
  virtual void abort(const std::string& why) = 0;
};

}  // namespace pipewright

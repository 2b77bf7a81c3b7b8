// Streams of messages between neighbouring stages. A message is a list of tensors of known types: the values
// that cross a cut for one minibatch, or their gradients. How they lie in memory crosses too: with its first
// message to a peer a stream says so for all of them (static shapes, the same operators: they lie alike).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "runtime/transport/message.h"
#include "runtime/transport/transport.h"

namespace pipewright {

/// The receiving end: all messages of one kind that a rank will get over a span, from whichever peers, in a
/// known order. Receives are posted early, so that data flows while this rank computes. Borrows the
/// transport.
class Inbox {
 public:
  /// One message to come. `parts` must outlive the inbox.
  struct Expected {
    int64_t peer = 0;
    const std::vector<MessagePart>* parts = nullptr;
  };

  /// Whether the message at a position of the order will come, as far as it is known now; if not, none behind
  /// it will. No receive of such a message is posted.
  using Comes = std::function<bool(size_t position)>;

  /// `first_tag`: tag of part 0; part i uses first_tag + i; a packed message (Transport::packer) the first;
  /// how n parts lie has first_tag + n. At most `ahead` (>= 1) messages are posted at a time: that is the
  /// memory the inbox may take beside the message being handed out.
  Inbox(Transport& transport, int64_t first_tag, std::vector<Expected> order, int64_t ahead,
        Comes comes = {});

  /// The next message of the order; waits for it. The tensors are read only (Delivery). Those of a packed
  /// message share their memory, no bytes of it.
  std::vector<at::Tensor> next();

 private:
  struct Posted {
    std::vector<std::unique_ptr<Delivery>> deliveries;
    int64_t peer = 0;
    const std::vector<MessagePart>* packed = nullptr;  // what the one delivery is an array of
  };
  void post_up_to(size_t count);
  const std::vector<MemoryOrder>& orders_of(int64_t peer, const std::vector<at::Tensor>& tensors);

  Transport& transport_;
  int64_t first_tag_;
  std::vector<Expected> order_;
  size_t ahead_;
  const Comes comes_;                                           // empty: all do
  size_t next_ = 0;                                             // of order_: to hand out
  std::deque<Posted> posted_;                                   // order_[next_, next_ + posted_.size())
  std::map<int64_t, std::unique_ptr<Delivery>> announcements_;  // by peer; none where no message needs one
  std::map<int64_t, std::vector<MemoryOrder>> orders_;          // by peer, once its first message is there
};

/// The sending end. Sends do not wait for their receiver until `limit` messages are under way; then for the
/// oldest.
class Outbox {
 public:
  Outbox(Transport& transport, int64_t first_tag, int64_t limit);
  ~Outbox();

  /// They must not be changed afterwards. Those that lie otherwise than in the first message to this peer, or
  /// with gaps, are copied.
  void send(int64_t peer, const std::vector<at::Tensor>& tensors);
  /// Waits until everything has been taken.
  void flush();
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void wait_for_oldest();

  Transport& transport_;
  int64_t first_tag_;
  size_t limit_;
  std::deque<std::vector<std::unique_ptr<Request>>> under_way_;
  std::map<int64_t, std::vector<MemoryOrder>> orders_;  // by peer
  int64_t sent_bytes_ = 0;
};

}  // namespace pipewright

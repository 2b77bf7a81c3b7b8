#include "runtime/transport/slowed.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

using Clock = std::chrono::steady_clock;

/// A message that is held back, and what became of it. Protected by the mutex of its transport.
struct Held {
  at::Tensor tensor;
  int64_t peer = 0, tag = 0;
  bool never_changes = false;
  std::unique_ptr<Request> sent;
  std::exception_ptr error;
};

class SlowedTransport : public Transport {
 public:
  SlowedTransport(std::unique_ptr<Transport> inner, MessageDelay delay)
      : inner_(std::move(inner)), delay_(std::move(delay)), thread_([this] { release(); }) {}

  ~SlowedTransport() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int64_t rank() const override { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  const Packer* packer(int64_t peer) const override { return inner_->packer(peer); }
  bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) override {
    return inner_->sum(flat, ranks, tag);
  }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return hold(std::move(tensor), peer, tag, /*never_changes=*/false);
  }
  std::unique_ptr<Request> give(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return hold(std::move(tensor), peer, tag, /*never_changes=*/true);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return inner_->receive(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Delivery> take(at::IntArrayRef shape, const at::TensorOptions& options, int64_t peer,
                                 int64_t tag) override {
    return inner_->take(shape, options, peer, tag);
  }

  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = why.empty() ? "aborted" : why;
    }
    changed_.notify_all();
    inner_->abort(why);
  }

  /// Waits until the thread has given the message on; its request, or what went wrong.
  std::unique_ptr<Request> released(Held& held) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held.sent || held.error || !aborted_.empty(); });
    if (held.error) std::rethrow_exception(held.error);
    if (!held.sent)
      throw PeerError("rank " + std::to_string(rank()) + ": send to rank " + std::to_string(held.peer) +
                      ": " + aborted_);
    return std::move(held.sent);
  }

 private:
  std::unique_ptr<Request> hold(at::Tensor tensor, int64_t peer, int64_t tag, bool never_changes);
  void release();
  std::unique_ptr<Request> pass_on(Held& held) {
    return held.never_changes ? inner_->give(std::move(held.tensor), held.peer, held.tag)
                              : inner_->send(std::move(held.tensor), held.peer, held.tag);
  }

  const std::unique_ptr<Transport> inner_;
  const MessageDelay delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::shared_ptr<Held>> waiting_;  // by when it goes; equal ones in order
  std::map<int64_t, Clock::time_point> free_;  // by peer: when the last one that was held has left the link
  std::map<int64_t, int64_t> held_;            // by peer: not yet given on
  std::string aborted_;
  bool stop_ = false;
  std::thread thread_;
};

class HeldRequest : public Request {
 public:
  HeldRequest(SlowedTransport& transport, std::shared_ptr<Held> held)
      : transport_(transport), held_(std::move(held)) {}
  void wait() override { transport_.released(*held_)->wait(); }

 private:
  SlowedTransport& transport_;
  std::shared_ptr<Held> held_;
};

std::unique_ptr<Request> SlowedTransport::hold(at::Tensor tensor, int64_t peer, int64_t tag,
                                               bool never_changes) {
  const auto delay = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay_(peer)));
  auto held = std::make_shared<Held>();
  held->tensor = std::move(tensor);
  held->peer = peer;
  held->tag = tag;
  held->never_changes = never_changes;
  {
    const std::lock_guard lock(mutex_);
    if (delay <= Clock::duration::zero() && held_[peer] == 0) return pass_on(*held);
    auto& free = free_[peer];
    free = std::max(free, Clock::now()) + delay;
    ++held_[peer];
    waiting_.emplace(free, held);
  }
  changed_.notify_all();
  return std::make_unique<HeldRequest>(*this, std::move(held));
}

void SlowedTransport::release() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (waiting_.empty()) {
      changed_.wait(lock);
    } else if (const auto due = waiting_.begin()->first; Clock::now() < due) {
      changed_.wait_until(lock, due);
    } else {
      const auto held = waiting_.extract(waiting_.begin()).mapped();
      try {
        // Under the lock: whatever is sent to the peer meanwhile comes behind it.
        held->sent = pass_on(*held);
      } catch (const std::exception&) {
        held->error = std::current_exception();
      }
      --held_[held->peer];
      changed_.notify_all();
    }
  }
}

}  // namespace

std::unique_ptr<Transport> make_slowed_transport(std::unique_ptr<Transport> inner, MessageDelay delay) {
  return std::make_unique<SlowedTransport>(std::move(inner), std::move(delay));
}

}  // namespace pipewright

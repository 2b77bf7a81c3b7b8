// A transport whose messages take random times, and a watchdog that ends a world in which nothing moves any
// more and says who waits for whom.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/transport/transport.h"

namespace pipewright::testing {

/// Knows what each rank of a world does and waits for. When nothing has moved for `patience`, it aborts all
/// ranks with a text that says who waits for whom. Any thread.
class Watchdog {
 public:
  Watchdog(int64_t ranks, std::chrono::milliseconds patience)
      : ranks_(static_cast<size_t>(ranks)), thread_([this, patience] { watch(patience); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// `transport` is aborted when nothing moves, until it leaves (null).
  void watch_rank(int64_t rank, Transport* transport) {
    const std::lock_guard lock(mutex_);
    at(rank).transport = transport;
  }
  void doing(int64_t rank, const std::string& action) {
    const std::lock_guard lock(mutex_);
    ++events_;
    at(rank).action = action;
  }
  void begin_wait(int64_t rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++events_;
    at(rank).waits.push_back(what);
  }
  void end_wait(int64_t rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++events_;
    auto& waits = at(rank).waits;
    waits.erase(std::find(waits.begin(), waits.end(), what));
  }

 private:
  struct Rank {
    Transport* transport = nullptr;
    std::string action = "its begin";
    std::vector<std::string> waits;
  };
  Rank& at(int64_t rank) { return ranks_.at(static_cast<size_t>(rank)); }

  void watch(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    int64_t seen = events_;
    while (!changed_.wait_for(lock, patience, [this] { return over_; })) {
      if (events_ == seen) {
        const std::string why = text(patience);
        for (const Rank& rank : ranks_)
          if (rank.transport) rank.transport->abort(why);
      }
      seen = events_;
    }
  }
  std::string text(std::chrono::milliseconds patience) const {
    std::string text = "nothing has moved for " + std::to_string(patience.count()) + " ms";
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      text += "; rank " + std::to_string(rank) + ", at " + ranks_[rank].action + ":";
      if (ranks_[rank].waits.empty()) text += " waits for nothing";
      for (const std::string& wait : ranks_[rank].waits) text += " " + wait;
    }
    return text;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  int64_t events_ = 0;  // whatever has happened
  bool over_ = false;
  std::thread thread_;  // last: it reads the others
};

/// Sleeps before a send, before a receive is posted and after each wait, up to `longest`: half of the times
/// not at all, otherwise for a random time, which depends on the seed and the rank.
class DelayedTransport : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> inner, std::shared_ptr<Watchdog> watchdog, uint64_t seed,
                   std::chrono::microseconds longest)
      : inner_(std::move(inner)),
        watchdog_(std::move(watchdog)),
        random_(seed * 1000 + static_cast<uint64_t>(inner_->rank())),
        longest_(longest) {
    watchdog_->watch_rank(rank(), inner_.get());
  }
  ~DelayedTransport() override { watchdog_->watch_rank(rank(), nullptr); }

  int64_t rank() const final { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    pause();
    return watched(inner_->send(std::move(tensor), peer, tag), "send to", peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    pause();
    return watched(inner_->receive(std::move(tensor), peer, tag), "receive from", peer, tag);
  }
  void abort(const std::string& why) override { inner_->abort(why); }

 private:
  class Watched : public Request {
   public:
    Watched(DelayedTransport& transport, std::unique_ptr<Request> inner, std::string what)
        : transport_(transport), inner_(std::move(inner)), what_(std::move(what)) {}
    void wait() override {
      transport_.watchdog_->begin_wait(transport_.rank(), what_);
      inner_->wait();
      transport_.watchdog_->end_wait(transport_.rank(), what_);
      transport_.pause();
    }

   private:
    DelayedTransport& transport_;
    std::unique_ptr<Request> inner_;
    std::string what_;
  };

  std::unique_ptr<Request> watched(std::unique_ptr<Request> inner, const char* verb, int64_t peer,
                                   int64_t tag) {
    return std::make_unique<Watched>(
        *this, std::move(inner),
        std::string(verb) + " rank " + std::to_string(peer) + ", tag " + std::to_string(tag));
  }
  void pause() {
    std::chrono::microseconds time{0};
    {
      const std::lock_guard lock(mutex_);
      if (longest_.count() == 0 || random_() % 2 == 0) return;
      time = std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, longest_.count())(random_));
    }
    std::this_thread::sleep_for(time);
  }

  std::unique_ptr<Transport> inner_;
  std::shared_ptr<Watchdog> watchdog_;
  std::mutex mutex_;
  std::mt19937_64 random_;
  std::chrono::microseconds longest_;
};

inline std::vector<std::unique_ptr<Transport>> delayed_world(std::vector<std::unique_ptr<Transport>> world,
                                                             const std::shared_ptr<Watchdog>& watchdog,
                                                             uint64_t seed,
                                                             std::chrono::microseconds longest) {
  for (auto& transport : world)
    transport = std::make_unique<DelayedTransport>(std::move(transport), watchdog, seed, longest);
  return world;
}

}  // namespace pipewright::testing

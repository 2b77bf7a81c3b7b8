// A device whose messages keep it waiting, without a device: each lane's stream is a thread (LateStream), and
// a half of a message blocks it until the other half runs too. Tensors of the host stand for a device's; the
// calling thread is its own stream.
#pragma once

#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "runtime/transport/paired.h"
#include "tests/support/late_copies.h"

namespace pipewright::testing {

/// Where the halves of messages meet: one for all ranks.
class MeetingPlace {
 public:
  using Address = std::tuple<int64_t, int64_t, int64_t>;  // sender, receiver, tag

  /// Blocks until somebody has taken it.
  void give(const Address& address, const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || offered_.count(address) == 0; });
    if (aborted_) return;
    offered_[address] = tensor;
    changed_.notify_all();
    changed_.wait(lock, [&] { return aborted_ || offered_.count(address) == 0; });
  }
  /// Blocks until somebody gives.
  void take(const Address& address, const at::Tensor& tensor) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || offered_.count(address) > 0; });
    if (aborted_) return;
    std::memcpy(tensor.data_ptr(), offered_.at(address).data_ptr(), tensor.nbytes());
    offered_.erase(address);
    changed_.notify_all();
  }
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Address, at::Tensor> offered_;
  bool aborted_ = false;
};

class LateLanes : public LaunchLanes {
 public:
  std::shared_ptr<StreamPoint> here() override { return std::make_shared<Point>(nullptr, 0); }
  std::shared_ptr<StreamPoint> run(size_t lane, const std::shared_ptr<StreamPoint>& after,
                                   const std::function<void()>& launch) override {
    after->wait_on_stream();
    std::shared_ptr<LateStream> stream;
    {
      const std::lock_guard lock(mutex_);
      auto& own = streams_[lane];
      if (!own) own = std::make_shared<LateStream>();
      stream = own;
    }
    current() = stream.get();
    launch();
    current() = nullptr;
    return std::make_shared<Point>(stream, stream->given());
  }
  /// As a host does unseen: until all is done that was launched.
  void wait_for_all() {
    std::map<size_t, std::shared_ptr<LateStream>> streams;
    {
      const std::lock_guard lock(mutex_);
      streams = streams_;
    }
    for (const auto& [lane, stream] : streams) stream->wait(stream->given());
  }
  static LateStream*& current() {
    thread_local LateStream* stream = nullptr;
    return stream;
  }

 private:
  struct Point : StreamPoint {
    Point(std::shared_ptr<LateStream> stream, int64_t number) : stream(std::move(stream)), number(number) {}
    void wait_on_host() override { wait_on_stream(); }
    void wait_on_stream() override {
      if (stream) stream->wait(number);
    }
    const std::shared_ptr<LateStream> stream;
    const int64_t number;
  };
  std::mutex mutex_;
  std::map<size_t, std::shared_ptr<LateStream>> streams_;
};

/// Messages of one rank, given to the current lane's stream.
class MeetingTransport : public Transport {
 public:
  MeetingTransport(std::shared_ptr<MeetingPlace> place, int64_t rank, int64_t size)
      : place_(std::move(place)), rank_(rank), size_(size) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    LateLanes::current()->give([place = place_, address = MeetingPlace::Address{rank_, peer, tag}, tensor] {
      place->give(address, tensor);
    });
    return std::make_unique<Launched>();
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    LateLanes::current()->give([place = place_, address = MeetingPlace::Address{peer, rank_, tag}, tensor] {
      place->take(address, tensor);
    });
    return std::make_unique<Launched>();
  }
  void abort(const std::string&) override { place_->abort(); }

 private:
  struct Launched : Request {
    void wait() override {}
  };
  const std::shared_ptr<MeetingPlace> place_;
  const int64_t rank_, size_;
};

/// A link for each pair of ranks and each of `tags`.
inline DeviceLinks links_between(int64_t size, const std::vector<int64_t>& tags) {
  DeviceLinks links;
  for (int64_t from = 0; from < size; ++from)
    for (int64_t to = 0; to < size; ++to)
      for (const int64_t tag : tags)
        if (from != to) links.links.push_back({from, to, {{tag, 1}}});
  return links;
}

}  // namespace pipewright::testing

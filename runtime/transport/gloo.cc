#include "runtime/transport/gloo.h"

#include <sched.h>

#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "graph/error.h"

namespace pipewright {
namespace {

using c10d::ProcessGroupGloo;

// Gloo's own time-out would break the connection of a peer that is merely slow. How long a silent peer is
// waited for is the business of whoever watches heartbeats and calls abort().
constexpr std::chrono::milliseconds kWaitForever = std::chrono::hours(24 * 7);

std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// What abort() reaches: the works of this rank that are not waited for yet, or are being waited for.
struct LiveWorks {
  std::mutex mutex;
  std::set<c10d::Work*> works;
  std::string aborted;  // why, or ""
};

class GlooRequest : public Request {
 public:
  GlooRequest(std::shared_ptr<LiveWorks> live, c10::intrusive_ptr<c10d::Work> work, std::string what)
      : live_(std::move(live)), work_(std::move(work)), what_(std::move(what)) {
    const std::lock_guard lock(live_->mutex);
    live_->works.insert(work_.get());
  }

  ~GlooRequest() override {
    const std::lock_guard lock(live_->mutex);
    live_->works.erase(work_.get());
  }

  void wait() override {
    {
      const std::lock_guard lock(live_->mutex);
      if (!live_->aborted.empty()) throw PeerError(what_ + ": " + live_->aborted);
    }
    std::string problem;
    try {
      if (work_->wait(kWaitForever)) return;
      const std::lock_guard lock(live_->mutex);
      problem = live_->aborted.empty() ? "aborted" : live_->aborted;
    } catch (const std::exception& error) {
      problem = "connection lost: " + first_line_of(error);
    }
    throw PeerError(what_ + ": " + problem);
  }

 private:
  std::shared_ptr<LiveWorks> live_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<ProcessGroupGloo> group, int64_t rank, int64_t size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return start(
        "send to", peer,
        [&](std::vector<at::Tensor>& list) {
          return group_->send(list, static_cast<int>(peer), static_cast<int>(tag));
        },
        std::move(tensor));
  }

  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return start(
        "receive from", peer,
        [&](std::vector<at::Tensor>& list) {
          return group_->recv(list, static_cast<int>(peer), static_cast<int>(tag));
        },
        std::move(tensor));
  }

  void abort(const std::string& why) override {
    const std::lock_guard lock(live_->mutex);
    if (live_->aborted.empty()) live_->aborted = why.empty() ? "aborted" : why;
    for (c10d::Work* work : live_->works) work->abort();
  }

 private:
  template <typename Post>
  std::unique_ptr<Request> start(const char* verb, int64_t peer, Post post, at::Tensor tensor) {
    PW_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "messages are contiguous CPU tensors");
    const std::string what = "rank " + std::to_string(rank_) + ": " + verb + " rank " + std::to_string(peer);
    std::vector<at::Tensor> list{std::move(tensor)};
    try {
      const std::lock_guard lock(post_mutex_);  // c10d numbers them
      return std::make_unique<GlooRequest>(live_, post(list), what);
    } catch (const std::exception& error) {
      throw PeerError(what + ": connection lost: " + first_line_of(error));
    }
  }

  std::shared_ptr<LiveWorks> live_ = std::make_shared<LiveWorks>();
  c10::intrusive_ptr<ProcessGroupGloo> group_;
  std::mutex post_mutex_;
  int64_t rank_;
  int64_t size_;
};

// With the device that listens at `address`, or at Gloo's own choice where that is "".
c10::intrusive_ptr<ProcessGroupGloo::Options> options_with_device(const std::string& address,
                                                                  std::chrono::milliseconds timeout) {
  if (address.empty()) return ProcessGroupGloo::Options::create_default(timeout);
  auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname(address));
  return options;
}

// A device's thread must not take the core from a thread that posts a message, which holds the lock of the
// connection: the thread only tries that lock, finds its event again and again, and gives the core back at
// the kernel's next tick, 3 to 4 ms later. As a batch thread it waits till the core is free, or for its turn.
// It gets that from the thread that makes the device.
c10::intrusive_ptr<ProcessGroupGloo::Options> options_with_patient_device(const std::string& address,
                                                                          std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<ProcessGroupGloo::Options> options;
  std::exception_ptr problem;
  std::thread maker([&] {
    const sched_param no_priority = {};
    sched_setscheduler(0, SCHED_BATCH, &no_priority);  // refused: it is slower, nothing else
    try {
      options = options_with_device(address, timeout);
    } catch (...) {
      problem = std::current_exception();
    }
  });
  maker.join();
  if (problem) std::rethrow_exception(problem);
  return options;
}

}  // namespace

PeerError no_gloo(int64_t rank, int64_t world_size, const std::string& why) {
  return PeerError("rank " + std::to_string(rank) + ": cannot connect the " + std::to_string(world_size) +
                       " ranks over Gloo: " + why,
                   "one of the ranks did not start, or its address cannot be reached from here; set "
                   "GLOO_SOCKET_IFNAME to the network interface that all hosts share");
}

std::unique_ptr<Transport> make_gloo_transport(const Store& store, const std::string& name, int64_t rank,
                                               int64_t world_size, const std::string& address,
                                               std::chrono::milliseconds timeout) {
  try {
    auto options = options_with_patient_device(address, timeout);
    options->threads = 1;  // for collectives, which we do not use
    auto keys = c10::make_intrusive<c10d::PrefixStore>(
        name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store.implementation()));
    auto group = c10::make_intrusive<ProcessGroupGloo>(keys, static_cast<int>(rank),
                                                       static_cast<int>(world_size), options);
    return std::make_unique<GlooTransport>(std::move(group), rank, world_size);
  } catch (const std::exception& error) {
    throw no_gloo(rank, world_size, first_line_of(error));
  }
}

}  // namespace pipewright

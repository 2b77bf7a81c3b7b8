#include "runtime/cuda/nccl_transport.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/cuda/nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "graph/error.h"
#include "runtime/cuda/check.h"

namespace pipewright {
namespace {

using c10d::ProcessGroupNCCL;

// How long a peer is waited for is the business of whoever watches heartbeats and calls abort().
constexpr std::chrono::milliseconds kWaitForever = std::chrono::hours(24 * 7);

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Why the transport was aborted; "" while it was not.
class Verdict {
 public:
  void say(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why.empty() ? "aborted" : why;
    said_ = true;
  }
  void check(const std::string& what) const {
    if (!said_) return;
    const std::lock_guard lock(mutex_);
    throw PeerError(what + ": " + why_);
  }
  bool said() const { return said_; }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> said_ = false;
  std::string why_;
};

// The work's wait() puts a wait for NCCL's stream into the current stream; the host goes on.
void wait_for(c10d::Work& work, const Verdict& verdict, const std::string& what) {
  verdict.check(what);
  try {
    work.wait();
  } catch (const std::exception& error) {
    verdict.check(what);
    throw PeerError(what + ": connection lost: " + first_line(error));
  }
}

class NcclRequest : public Request {
 public:
  NcclRequest(std::shared_ptr<const Verdict> verdict, c10::intrusive_ptr<c10d::Work> work, std::string what)
      : verdict_(std::move(verdict)), work_(std::move(work)), what_(std::move(what)) {}
  void wait() override { wait_for(*work_, *verdict_, what_); }

 private:
  std::shared_ptr<const Verdict> verdict_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
};

// A communicator with a stream of its own.
struct Group {
  c10::intrusive_ptr<ProcessGroupNCCL> group;
  std::vector<TagRange> tags;
  std::vector<int64_t> ranks;  // of the group, by their number in it; of a link: sender, receiver
};

// In a link's group the sender is 0 and the receiver 1.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

class NcclTransport : public Transport {
 public:
  NcclTransport(c10d::Store& store, const NcclSettings& settings)
      : rank_(settings.rank),
        size_(settings.world_size),
        device_(at::kCUDA, static_cast<c10::DeviceIndex>(settings.device)) {
    const c10::DeviceGuard guard(device_);
    if (std::getenv(kShareGpuVariable) != nullptr) {
      setenv("NCCL_HOSTID", ("rank" + std::to_string(rank_)).c_str(), 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    // In the order that all ranks know: so the two or more that a group waits for are never in two of them.
    size_t number = 0;
    for (const DeviceLink& link : settings.links->links) {
      const std::string name = settings.name + "/link" + std::to_string(number++);
      if (link.from != rank_ && link.to != rank_) continue;
      PW_CHECK(link.from != link.to, "a link from rank " << link.from << " to itself");
      links_.push_back({connect(store, name, link.from == rank_ ? kSender : kReceiver, 2),
                        link.tags,
                        {link.from, link.to}});
    }
    number = 0;
    for (const DeviceSum& sum : settings.links->sums) {
      const std::string name = settings.name + "/sum" + std::to_string(number++);
      const auto self = std::find(sum.ranks.begin(), sum.ranks.end(), rank_);
      if (self == sum.ranks.end()) continue;
      sums_.push_back({connect(store, name, static_cast<int>(self - sum.ranks.begin()),
                               static_cast<int>(sum.ranks.size())),
                       sum.tags, sum.ranks});
    }
    warm();
  }

  ~NcclTransport() override {
    try {
      // After an abort the communicators are gone already.
      if (!verdict_->said()) each([](ProcessGroupNCCL& group) { group.shutdown(); });
    } catch (const std::exception& error) {
      complain(error);
    }
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    const std::string what = "rank " + std::to_string(rank_) + ": send to rank " + std::to_string(peer);
    return post(what, link(rank_, peer, tag), std::move(tensor),
                [](ProcessGroupNCCL& group, std::vector<at::Tensor>& list) {
                  return group.send(list, kReceiver, 0);
                });
  }

  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    const std::string what = "rank " + std::to_string(rank_) + ": receive from rank " + std::to_string(peer);
    return post(
        what, link(peer, rank_, tag), std::move(tensor),
        [](ProcessGroupNCCL& group, std::vector<at::Tensor>& list) { return group.recv(list, kSender, 0); });
  }

  bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) override {
    const auto found = std::find_if(sums_.begin(), sums_.end(), [&](const Group& sum) {
      return sum.ranks == ranks && any_holds(sum.tags, tag);
    });
    if (found == sums_.end()) return false;
    post("rank " + std::to_string(rank_) + ": sum over the replicas", *found, flat,
         [](ProcessGroupNCCL& group, std::vector<at::Tensor>& list) { return group.allreduce(list); })
        ->wait();
    return true;
  }

  // From another thread than the one that posts: NCCL allows that for its abort alone. Kernels that wait for
  // a peer end, and with them whatever the host waits for. All groups at once: taking one down may wait for
  // the device, and so for the kernels of the others.
  void abort(const std::string& why) override {
    const std::lock_guard lock(abort_mutex_);
    if (verdict_->said()) return;
    verdict_->say(why);
    std::vector<std::thread> threads;
    each([&](ProcessGroupNCCL& group) {
      threads.emplace_back([&] {
        try {
          group.abort();
        } catch (const std::exception& error) {
          complain(error);
        }
      });
    });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void complain(const std::exception& error) const {
    std::fprintf(stderr, "pipewright: rank %ld: while NCCL ends: %s\n", static_cast<long>(rank_),
                 first_line(error).c_str());
  }

  c10::intrusive_ptr<ProcessGroupNCCL> connect(c10d::Store& store, const std::string& name, int rank,
                                               int size) {
    try {
      auto options = ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
      options->timeout = kWaitForever;
      auto keys =
          c10::make_intrusive<c10d::PrefixStore>(name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store));
      auto group = c10::make_intrusive<ProcessGroupNCCL>(keys, rank, size, options);
      group->setBoundDeviceId(device_);
      group->eagerConnectSingleDevice(device_);
      return group;
    } catch (const std::exception& error) {
      throw PeerError(
          "rank " + std::to_string(rank_) + ": cannot connect over NCCL (" + name + "): " + first_line(error),
          "NCCL_DEBUG=INFO in the environment makes NCCL say more; --transport gloo works without it");
    }
  }

  Group& link(int64_t from, int64_t to, int64_t tag) {
    const auto found = std::find_if(links_.begin(), links_.end(), [&](const Group& link) {
      return link.ranks[0] == from && link.ranks[1] == to && any_holds(link.tags, tag);
    });
    PW_CHECK(found != links_.end(), "no link from rank " << from << " to rank " << to << " has tag " << tag);
    return *found;
  }

  template <typename Post>
  std::unique_ptr<Request> post(const std::string& what, Group& group, at::Tensor tensor,
                                const Post& post_it) {
    PW_CHECK(tensor.is_contiguous() && tensor.device() == device_,
             what << ": a contiguous tensor of " << device_ << " is expected, not of " << tensor.device());
    verdict_->check(what);
    std::vector<at::Tensor> list{std::move(tensor)};
    try {
      return std::make_unique<NcclRequest>(verdict_, post_it(*group.group, list), what);
    } catch (const std::exception& error) {
      verdict_->check(what);
      throw PeerError(what + ": connection lost: " + first_line(error));
    }
  }

  template <typename Do>
  void each(const Do& do_it) {
    for (Group& link : links_) do_it(*link.group);
    for (Group& sum : sums_) do_it(*sum.group);
  }

  // One message over each link and one sum: what the first costs is paid before training.
  void warm() {
    const at::Tensor element = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device_));
    for (const Group& link : links_) {
      const bool sends = link.ranks[0] == rank_;
      (sends ? send(element, link.ranks[1], link.tags[0].first)
             : receive(element.clone(), link.ranks[0], link.tags[0].first))
          ->wait();
    }
    for (const Group& group : sums_) sum(element.clone(), group.ranks, group.tags[0].first);
    PW_CUDA(cudaDeviceSynchronize());
  }

  const int64_t rank_;
  const int64_t size_;
  const at::Device device_;
  std::vector<Group> links_;
  std::vector<Group> sums_;
  const std::shared_ptr<Verdict> verdict_ = std::make_shared<Verdict>();
  std::mutex abort_mutex_;
};

}  // namespace

std::unique_ptr<Transport> connect_over_nccl(c10d::Store& store, const NcclSettings& settings) {
  return std::make_unique<NcclTransport>(store, settings);
}

int64_t nccl_version_at_run_time() {
  const uint64_t packed = torch::cuda::nccl::version();  // 32, 16 and 16 bits
  return static_cast<int64_t>((packed >> 32U) * 10'000 + ((packed >> 16U) & 0xffffU) * 100 +
                              (packed & 0xffffU));
}

void set_nccl_environment() {
  // An error of NCCL cleans up its communicator, and does not end the process (2: clean up only).
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 1);
  // No thread of c10d's ends the process because it finds another one slow.
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 1);
  // A wait is one of the stream's, not of the host's.
  setenv("TORCH_NCCL_BLOCKING_WAIT", "0", 1);
  // Each group here has one direction: that its messages take turns is what is wanted.
  setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0", 1);
  // Streams that share a queue of the hardware wait for each other; a receive that waits for its peer must
  // not hold up the computation that the peer waits for. The most that there are, unless the user knows
  // better.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace pipewright

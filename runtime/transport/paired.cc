#include "runtime/transport/paired.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// To a message's sender: there is memory for it. To its receiver: it is launched.
constexpr int64_t kRoomTags = kPairTags;
constexpr int64_t kGoTags = 2 * kPairTags;

at::Tensor word() { return at::empty({1}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)).zero_(); }

class DeviceLanes : public LaunchLanes {
 public:
  explicit DeviceLanes(at::Device device) : device_(device) {}
  std::shared_ptr<StreamPoint> here() override { return point_of_current_stream(device_); }
  std::shared_ptr<StreamPoint> run(size_t lane, const std::shared_ptr<StreamPoint>& after,
                                   const std::function<void()>& launch) override {
    const c10::StreamGuard guard(stream_of(lane));
    after->wait_on_stream();
    launch();
    return point_of_current_stream(device_);
  }

 private:
  c10::Stream stream_of(size_t lane) {
    const std::lock_guard lock(mutex_);
    const auto known = streams_.find(lane);
    if (known != streams_.end()) return known->second;
    const c10::impl::VirtualGuardImpl guard(device_.type());
    // Not of those that recordings are made on.
    return streams_.emplace(lane, guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/true))
        .first->second;
  }

  at::Device device_;
  std::mutex mutex_;
  std::map<size_t, c10::Stream> streams_;
};

// Under the transport's mutex but for what its lane's thread has to itself: the words, until it is launched.
struct Message {
  at::Tensor tensor;
  int64_t tag = 0;
  std::shared_ptr<StreamPoint> after;  // the tensor is filled, or may be written
  std::unique_ptr<Request> word;       // what the lane waits for
  std::unique_ptr<Request> own_word;   // what this rank has said itself
  std::shared_ptr<StreamPoint> done;   // once it is launched
  std::exception_ptr error;
};

struct Lane {
  size_t number = 0;
  DeviceLink link;
  int64_t peer = 0;
  bool sends = false;
  std::deque<std::shared_ptr<Message>> messages;  // in order; the first may be in the thread's hands
  std::thread thread;
};

class PairedTransport : public Transport {
 public:
  PairedTransport(std::shared_ptr<Transport> host, std::unique_ptr<Transport> device,
                  std::unique_ptr<LaunchLanes> streams, DeviceLinks links)
      : host_(std::move(host)),
        device_(std::move(device)),
        streams_(std::move(streams)),
        links_(std::move(links)) {
    for (size_t number = 0; number < links_.links.size(); ++number) {
      const DeviceLink& link = links_.links[number];
      if (link.from != rank() && link.to != rank()) continue;
      const bool sends = link.from == rank();
      lanes_.push_back({number, link, sends ? link.to : link.from, sends, {}, {}});
    }
  }

  ~PairedTransport() override {
    bool under_way = false;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      for (const Lane& lane : lanes_) under_way = under_way || !lane.messages.empty();
    }
    changed_.notify_all();
    if (under_way) host_->abort("this rank stops");
    for (Lane& lane : lanes_)
      if (lane.thread.joinable()) lane.thread.join();
  }

  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    Lane& lane = lane_of(rank(), peer, tag);
    auto message = message_of(std::move(tensor), tag);
    message->word = host_->receive(word(), peer, tag + kRoomTags);
    return post(lane, std::move(message));
  }

  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    Lane& lane = lane_of(peer, rank(), tag);
    auto message = message_of(std::move(tensor), tag);
    message->word = host_->receive(word(), peer, tag + kGoTags);
    message->own_word = host_->send(word(), peer, tag + kRoomTags);
    return post(lane, std::move(message));
  }

  bool sum(const at::Tensor& flat, const std::vector<int64_t>& ranks, int64_t tag) override {
    const bool known = std::any_of(links_.sums.begin(), links_.sums.end(), [&](const DeviceSum& sum) {
      return sum.ranks == ranks && any_holds(sum.tags, tag);
    });
    if (!known) return false;
    std::vector<std::unique_ptr<Request>> words;
    for (const int64_t peer : ranks) {
      if (peer == rank()) continue;
      words.push_back(host_->receive(word(), peer, tag + kRoomTags));
      words.push_back(host_->send(word(), peer, tag + kRoomTags));
    }
    for (const auto& one : words) one->wait();
    PW_CHECK(device_->sum(flat, ranks, tag), "the device's transport has another list of sums");
    return true;
  }

  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = why.empty() ? "aborted" : why;
    }
    changed_.notify_all();
    host_->abort(why);
    device_->abort(why);
  }

  void wait_for(Message& message, const std::string& what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return message.done || message.error || !aborted_.empty(); });
    if (message.error) std::rethrow_exception(message.error);
    if (!message.done) throw PeerError(what + ": " + aborted_);
    lock.unlock();
    message.done->wait_on_stream();
    message.tensor.reset();
  }

 private:
  class Waited : public Request {
   public:
    Waited(PairedTransport& transport, std::shared_ptr<Message> message, std::string what)
        : transport_(transport), message_(std::move(message)), what_(std::move(what)) {}
    void wait() override { transport_.wait_for(*message_, what_); }

   private:
    PairedTransport& transport_;
    std::shared_ptr<Message> message_;
    std::string what_;
  };

  std::shared_ptr<Message> message_of(at::Tensor tensor, int64_t tag) {
    PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
    PW_CHECK_LT(tag, kPairTags);
    auto message = std::make_shared<Message>();
    message->tensor = std::move(tensor);
    message->tag = tag;
    message->after = streams_->here();
    return message;
  }

  Lane& lane_of(int64_t from, int64_t to, int64_t tag) {
    const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
      return lane.link.from == from && lane.link.to == to && any_holds(lane.link.tags, tag);
    });
    PW_CHECK(found != lanes_.end(), "no link from rank " << from << " to rank " << to << " has tag " << tag);
    return *found;
  }

  std::unique_ptr<Request> post(Lane& lane, std::shared_ptr<Message> message) {
    {
      const std::lock_guard lock(mutex_);
      lane.messages.push_back(message);
      if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { run(lane); });
    }
    changed_.notify_all();
    const std::string what = "rank " + std::to_string(rank()) + ": " +
                             (lane.sends ? "send to" : "receive from") + " rank " + std::to_string(lane.peer);
    return std::make_unique<Waited>(*this, std::move(message), what);
  }

  void run(Lane& lane) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return over_ || !lane.messages.empty(); });
      if (lane.messages.empty()) return;
      const std::shared_ptr<Message> message = lane.messages.front();
      lock.unlock();
      std::shared_ptr<StreamPoint> done;
      std::exception_ptr error;
      try {
        done = launch(lane, *message);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      message->done = std::move(done);
      message->error = error;
      lane.messages.pop_front();
      changed_.notify_all();
    }
  }

  std::shared_ptr<StreamPoint> launch(const Lane& lane, Message& message) {
    message.word->wait();
    if (lane.sends) message.own_word = host_->send(word(), lane.peer, message.tag + kGoTags);
    auto done = streams_->run(lane.number, message.after, [&] {
      (lane.sends ? device_->send(message.tensor, lane.peer, message.tag)
                  : device_->receive(message.tensor, lane.peer, message.tag))
          ->wait();
    });
    message.own_word->wait();
    return done;
  }

  const std::shared_ptr<Transport> host_;
  const std::unique_ptr<Transport> device_;
  const std::unique_ptr<LaunchLanes> streams_;
  const DeviceLinks links_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string aborted_;
  bool over_ = false;
  std::deque<Lane> lanes_;  // of this rank; they stay where they are
};

}  // namespace

std::unique_ptr<LaunchLanes> make_launch_lanes(at::Device device) {
  return std::make_unique<DeviceLanes>(device);
}

std::unique_ptr<Transport> make_paired_transport(std::shared_ptr<Transport> host,
                                                 std::unique_ptr<Transport> device,
                                                 std::unique_ptr<LaunchLanes> lanes, DeviceLinks links) {
  return std::make_unique<PairedTransport>(std::move(host), std::move(device), std::move(lanes),
                                           std::move(links));
}

}  // namespace pipewright

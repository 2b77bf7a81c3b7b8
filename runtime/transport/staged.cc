#include "runtime/transport/staged.h"

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "graph/error.h"

namespace pipewright {
namespace {

// The first bytes of the buffer as a tensor like `tensor`.
at::Tensor like(const at::Tensor& tensor, const at::Tensor& buffer) {
  return buffer.narrow(0, 0, static_cast<int64_t>(tensor.nbytes()))
      .view(tensor.scalar_type())
      .view(tensor.sizes());
}

// A message on its way out. All but `copied` and what is made with it is under the transport's mutex.
struct Departure {
  at::Tensor tensor;  // of the device, until it is copied
  at::Tensor copy;    // on the host
  int64_t peer = 0;
  int64_t tag = 0;
  std::shared_ptr<StreamPoint> copied;
  std::unique_ptr<Request> request;  // of the host transport, once it is posted
  std::exception_ptr error;
};

// A message on its way in.
struct Arrival {
  enum class State { kPosted, kTaken, kUploaded };
  at::Tensor tensor;  // of the device
  at::Tensor copy;    // on the host
  int64_t peer = 0;
  int64_t tag = 0;
  std::shared_ptr<StreamPoint> free;  // the tensor's memory may be written from here on
  std::unique_ptr<Request> request;
  State state = State::kPosted;
  std::shared_ptr<StreamPoint> uploaded;
  std::exception_ptr error;
};

class StagedTransport : public Transport {
 public:
  StagedTransport(std::shared_ptr<Transport> host, std::unique_ptr<CopyEngine> engine)
      : host_(std::move(host)), engine_(std::move(engine)) {}

  ~StagedTransport() override {
    bool under_way = false;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      under_way = taking_ || !departures_.empty();
    }
    changed_.notify_all();
    if (under_way) host_->abort("this rank stops");
    if (sender_.joinable()) sender_.join();
    if (receiver_.joinable()) receiver_.join();
  }

  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override;
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override;

  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_.empty()) aborted_ = why.empty() ? "aborted" : why;
    }
    changed_.notify_all();
    host_->abort(why);
  }

  void wait_for(Departure& message);
  void wait_for(const std::shared_ptr<Arrival>& message);

 private:
  using Address = std::pair<int64_t, int64_t>;  // peer, tag

  void run_sender();
  void run_receiver();
  void take(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Arrival>& message);
  [[noreturn]] void throw_aborted(const char* verb, int64_t peer) const {
    throw PeerError("rank " + std::to_string(rank()) + ": " + verb + " rank " + std::to_string(peer) + ": " +
                    aborted_);
  }

  const std::shared_ptr<Transport> host_;
  const std::unique_ptr<CopyEngine> engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string aborted_;
  bool over_ = false;

  std::deque<std::shared_ptr<Departure>> departures_;  // copied or being copied, not sent yet
  std::thread sender_;

  std::list<std::shared_ptr<Arrival>> arrivals_;  // posted, not taken by anyone yet
  std::map<Address, int64_t> being_taken_;        // streams with a message that somebody takes in
  bool taking_ = false;                           // the receiver's thread does
  std::thread receiver_;
};

class StagedSend : public Request {
 public:
  StagedSend(StagedTransport& transport, std::shared_ptr<Departure> message)
      : transport_(transport), message_(std::move(message)) {}
  void wait() override { transport_.wait_for(*message_); }

 private:
  StagedTransport& transport_;
  std::shared_ptr<Departure> message_;
};

class StagedReceive : public Request {
 public:
  StagedReceive(StagedTransport& transport, std::shared_ptr<Arrival> message)
      : transport_(transport), message_(std::move(message)) {}
  void wait() override { transport_.wait_for(message_); }

 private:
  StagedTransport& transport_;
  std::shared_ptr<Arrival> message_;
};

std::unique_ptr<Request> StagedTransport::send(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
  auto message = std::make_shared<Departure>();
  message->copy = like(tensor, engine_->host_buffer(static_cast<int64_t>(tensor.nbytes())));
  message->peer = peer;
  message->tag = tag;
  message->copied = engine_->download(tensor, message->copy, engine_->here());
  message->tensor = std::move(tensor);
  {
    const std::lock_guard lock(mutex_);
    departures_.push_back(message);
    if (!sender_.joinable()) sender_ = std::thread([this] { run_sender(); });
  }
  changed_.notify_all();
  return std::make_unique<StagedSend>(*this, std::move(message));
}

void StagedTransport::run_sender() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return over_ || !departures_.empty(); });
    if (over_) return;
    const std::shared_ptr<Departure> message = departures_.front();
    lock.unlock();
    std::unique_ptr<Request> request;
    std::exception_ptr error;
    try {
      message->copied->wait_on_host();
      request = host_->send(message->copy, message->peer, message->tag);
    } catch (...) {
      error = std::current_exception();
    }
    const at::Tensor done = std::exchange(message->tensor, at::Tensor());  // freed without the lock
    lock.lock();
    message->request = std::move(request);
    message->error = error;
    departures_.pop_front();
    changed_.notify_all();
  }
}

void StagedTransport::wait_for(Departure& message) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return message.request || message.error || !aborted_.empty(); });
    if (message.error) std::rethrow_exception(message.error);
    if (!message.request) throw_aborted("send to", message.peer);
  }
  message.request->wait();
}

std::unique_ptr<Request> StagedTransport::receive(at::Tensor tensor, int64_t peer, int64_t tag) {
  PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
  auto message = std::make_shared<Arrival>();
  message->copy = like(tensor, engine_->host_buffer(static_cast<int64_t>(tensor.nbytes())));
  message->peer = peer;
  message->tag = tag;
  message->free = engine_->here();
  message->tensor = std::move(tensor);
  message->request = host_->receive(message->copy, peer, tag);
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(message);
    if (!receiver_.joinable()) receiver_ = std::thread([this] { run_receiver(); });
  }
  changed_.notify_all();
  return std::make_unique<StagedReceive>(*this, std::move(message));
}

// Waits for the message and gives its copy to the device. The messages of a stream are taken in one after the
// other: the host transport wants them so.
void StagedTransport::take(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Arrival>& message) {
  const Address address{message->peer, message->tag};
  arrivals_.remove(message);
  message->state = Arrival::State::kTaken;
  ++being_taken_[address];
  lock.unlock();
  std::shared_ptr<StreamPoint> uploaded;
  std::exception_ptr error;
  try {
    message->request->wait();
    uploaded = engine_->upload(message->copy, message->tensor, message->free);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  message->uploaded = std::move(uploaded);
  message->error = error;
  message->state = Arrival::State::kUploaded;
  if (--being_taken_[address] == 0) being_taken_.erase(address);
  changed_.notify_all();
}

void StagedTransport::run_receiver() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    // The oldest message that is the next of its stream: an older one of it may be in somebody's hands.
    std::shared_ptr<Arrival> next;
    for (const auto& message : arrivals_) {
      if (being_taken_.count({message->peer, message->tag}) != 0) continue;
      next = message;
      break;
    }
    if (!next || !aborted_.empty()) {
      changed_.wait(lock);
      continue;
    }
    taking_ = true;
    take(lock, next);
    taking_ = false;
  }
}

void StagedTransport::wait_for(const std::shared_ptr<Arrival>& message) {
  std::unique_lock lock(mutex_);
  if (message->state == Arrival::State::kPosted) {
    if (!aborted_.empty()) throw_aborted("receive from", message->peer);
    take(lock, message);
  }
  changed_.wait(lock, [&] { return message->state == Arrival::State::kUploaded; });
  if (message->error) std::rethrow_exception(message->error);
  const std::shared_ptr<StreamPoint> uploaded = message->uploaded;
  lock.unlock();
  uploaded->wait_on_stream();
}

}  // namespace

std::unique_ptr<Transport> make_staged_transport(std::shared_ptr<Transport> host,
                                                 std::unique_ptr<CopyEngine> engine) {
  return std::make_unique<StagedTransport>(std::move(host), std::move(engine));
}

}  // namespace pipewright

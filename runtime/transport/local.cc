#include "runtime/transport/local.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "graph/error.h"
#include "runtime/transport/copy_engine.h"
#include "runtime/transport/message.h"

namespace pipewright {
namespace {

using Address = std::tuple<int64_t, int64_t, int64_t>;  // sender, receiver, tag

// A tensor of a device stays within it: streams wait for each other, the host for none.
struct Letter {
  at::Tensor tensor;
  std::shared_ptr<StreamPoint>
      point;  // of a device's: the sender has filled it; later: the receiver has read it
};

// All mailboxes of a world behind one lock: a test world has a handful of ranks.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Address, std::deque<Letter>> mailboxes;
  std::vector<std::vector<Letter>>
      read;                          // per sender: its memory, which it frees behind the receiver's reading
  std::vector<std::string> aborted;  // per rank: why, or ""
};

class SendRequest : public Request {
 public:
  void wait() override {}  // a mailbox has taken a copy
};

Letter next_letter(World& world, const Address& address) {
  const auto [sender, receiver, tag] = address;
  std::unique_lock lock(world.mutex);
  auto& mailbox = world.mailboxes[address];
  auto& why = world.aborted[static_cast<size_t>(receiver)];
  world.changed.wait(lock, [&] { return !mailbox.empty() || !why.empty(); });
  if (!why.empty()) {
    throw PeerError("rank " + std::to_string(receiver) + ": message from rank " + std::to_string(sender) +
                    " with tag " + std::to_string(tag) + " did not arrive: " + why);
  }
  Letter letter = std::move(mailbox.front());
  mailbox.pop_front();
  return letter;
}

class ReceiveRequest : public Request {
 public:
  ReceiveRequest(std::shared_ptr<World> world, at::Tensor into, Address address)
      : world_(std::move(world)), into_(std::move(into)), address_(address) {}

  void wait() override {
    Letter letter = next_letter(*world_, address_);
    PW_CHECK_EQ(letter.tensor.nbytes(), into_.nbytes());
    PW_CHECK_EQ(letter.tensor.scalar_type(), into_.scalar_type());
    if (!letter.point && into_.device().is_cpu()) {
      std::memcpy(into_.data_ptr(), letter.tensor.data_ptr(), letter.tensor.nbytes());
      return;
    }
    const at::NoGradGuard no_grad;
    if (letter.point) letter.point->wait_on_stream();
    into_.view(-1).copy_(letter.tensor.view(-1), /*non_blocking=*/into_.device() == letter.tensor.device());
    if (!letter.point) return;
    letter.point = point_of_current_stream(letter.tensor.device());
    const std::lock_guard lock(world_->mutex);
    world_->read[static_cast<size_t>(std::get<0>(address_))].push_back(std::move(letter));
  }

 private:
  std::shared_ptr<World> world_;
  at::Tensor into_;
  Address address_;
};

// The memory of the sender's tensor itself.
class HandedOver : public Delivery {
 public:
  HandedOver(std::shared_ptr<World> world, std::vector<int64_t> shape, at::ScalarType dtype, Address address)
      : world_(std::move(world)), shape_(std::move(shape)), dtype_(dtype), address_(address) {}

  at::Tensor wait() override {
    const Letter letter = next_letter(*world_, address_);
    PW_CHECK_EQ(letter.tensor.numel(), c10::multiply_integers(shape_));
    PW_CHECK_EQ(letter.tensor.scalar_type(), dtype_);
    if (letter.point) {
      letter.point->wait_on_stream();
      // It is used again not before this thread's stream has read it, whoever lets go of it last.
      const c10::impl::VirtualGuardImpl guard(letter.tensor.device().type());
      guard.recordDataPtrOnStream(letter.tensor.storage().data_ptr(),
                                  guard.getStream(letter.tensor.device()));
    }
    return tensor_within(letter.tensor, 0, dtype_, shape_);
  }

 private:
  std::shared_ptr<World> world_;
  std::vector<int64_t> shape_;
  at::ScalarType dtype_;
  Address address_;
};

class LocalTransport : public Transport {
 public:
  LocalTransport(std::shared_ptr<World> world, int64_t rank, int64_t size)
      : world_(std::move(world)), rank_(rank), size_(size) {}

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return size_; }

  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
    const at::NoGradGuard no_grad;
    return give(tensor.clone(), peer, tag);
  }

  std::unique_ptr<Request> give(at::Tensor tensor, int64_t peer, int64_t tag) override {
    PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
    Letter letter{std::move(tensor), nullptr};
    if (!letter.tensor.device().is_cpu()) letter.point = point_of_current_stream(letter.tensor.device());
    std::vector<Letter> read;
    {
      const std::lock_guard lock(world_->mutex);
      world_->mailboxes[{rank_, peer, tag}].push_back(std::move(letter));
      read.swap(world_->read[static_cast<size_t>(rank_)]);
    }
    for (const Letter& old : read) old.point->wait_on_stream();
    world_->changed.notify_all();
    return std::make_unique<SendRequest>();
  }

  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    PW_CHECK(tensor.is_contiguous(), "messages are contiguous");
    return std::make_unique<ReceiveRequest>(world_, std::move(tensor), Address{peer, rank_, tag});
  }

  std::unique_ptr<Delivery> take(at::IntArrayRef shape, const at::TensorOptions& options, int64_t peer,
                                 int64_t tag) override {
    return std::make_unique<HandedOver>(world_, shape.vec(), c10::typeMetaToScalarType(options.dtype()),
                                        Address{peer, rank_, tag});
  }

  void abort(const std::string& why) override {
    {
      const std::lock_guard lock(world_->mutex);
      auto& mine = world_->aborted[static_cast<size_t>(rank_)];
      if (mine.empty()) mine = why.empty() ? "aborted" : why;
    }
    world_->changed.notify_all();
  }

 private:
  std::shared_ptr<World> world_;
  int64_t rank_;
  int64_t size_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local_world(int64_t world_size) {
  auto world = std::make_shared<World>();
  world->aborted.resize(static_cast<size_t>(world_size));
  world->read.resize(static_cast<size_t>(world_size));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    transports.push_back(std::make_unique<LocalTransport>(world, rank, world_size));
  }
  return transports;
}

}  // namespace pipewright

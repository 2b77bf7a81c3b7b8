// Several tensors of a device as one message.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <random>

#include "runtime/transport/channel.h"
#include "runtime/transport/local.h"
#include "tests/support/fake_device.h"
#include "tests/support/stand_in_cuda.h"

using namespace pipewright;
using pipewright::testing::fake_device;
using pipewright::testing::fake_device_counts;
using pipewright::testing::reset_fake_device;

namespace {

std::vector<at::Tensor> drawn_tensors(std::mt19937_64& random, at::Device device) {
  static const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16, at::kLong,
                                                     at::kByte,  at::kBool,     at::kDouble};
  std::vector<at::Tensor> tensors;
  for (size_t i = 2 + random() % 6; i > 0; --i) {
    std::vector<int64_t> shape;
    for (size_t d = random() % 4; d > 0; --d) shape.push_back(static_cast<int64_t>(random() % 7));
    tensors.push_back(at::randint(0, 2, shape).to(dtypes[random() % dtypes.size()]).to(device));
  }
  return tensors;
}

std::vector<MessagePart> parts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<MessagePart> parts;
  for (const at::Tensor& tensor : tensors)
    parts.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device()});
  return parts;
}

// Counts what is sent, and packs.
class PackingTransport : public Transport {
 public:
  explicit PackingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int64_t rank() const override { return inner_->rank(); }
  int64_t world_size() const override { return inner_->world_size(); }
  std::unique_ptr<Request> send(at::Tensor tensor, int64_t peer, int64_t tag) override {
    ++sends;
    return inner_->send(std::move(tensor), peer, tag);
  }
  std::unique_ptr<Request> receive(at::Tensor tensor, int64_t peer, int64_t tag) override {
    return inner_->receive(std::move(tensor), peer, tag);
  }
  const Packer* packer(int64_t) const override { return &packer_; }
  void abort(const std::string& why) override { inner_->abort(why); }
  int64_t sends = 0;

 private:
  std::unique_ptr<Transport> inner_;
  Packer packer_;
};

}  // namespace

TEST_CASE("packed tensors are unpacked as they were, in drawn numbers, shapes and dtypes") {
  std::mt19937_64 random(3);
  pipewright::testing::StandInCuda without_kernels;
  for (int i = 0; i < 300; ++i) {
    const auto tensors = drawn_tensors(random, fake_device());
    const auto parts = parts_of(tensors);
    REQUIRE(Packer::packs(parts));
    const Packer packer = i % 2 == 0 ? Packer() : Packer(&without_kernels);
    const at::Tensor array = packer.pack(tensors);
    CHECK(array.sizes().vec() == Packer::array_of(parts).shape);
    const auto unpacked = Packer::unpack(array, parts);
    REQUIRE(unpacked.size() == tensors.size());
    for (size_t t = 0; t < tensors.size(); ++t) {
      CHECK(unpacked[t].device() == fake_device());
      CHECK(unpacked[t].scalar_type() == tensors[t].scalar_type());
      CHECK(unpacked[t].cpu().equal(tensors[t].cpu()));
      if (unpacked[t].numel() > 0) CHECK(reinterpret_cast<uintptr_t>(unpacked[t].data_ptr()) % 64 == 0);
    }
  }
}

TEST_CASE("an unpacked tensor that is written in place is no change of its neighbours") {
  const at::Tensor one = at::ones({3}, fake_device()), two = at::ones({3}, fake_device());
  const auto parts = parts_of({one, two});
  const auto unpacked = Packer::unpack(Packer().pack({one, two}), parts);
  const auto version = unpacked[1]._version();
  unpacked[0].mul_(5);
  CHECK(unpacked[1]._version() == version);
  CHECK(unpacked[1].cpu().equal(at::ones({3})));
}

TEST_CASE("one tensor, or one of the host among them, is not packed") {
  const at::Tensor here = at::ones({2}), there = at::ones({2}, fake_device());
  CHECK(Packer::packs(std::vector<at::Tensor>{there, there}));
  CHECK_FALSE(Packer::packs(std::vector<at::Tensor>{there}));
  CHECK_FALSE(Packer::packs(std::vector<at::Tensor>{there, here}));
  CHECK_FALSE(Packer::packs(std::vector<at::Tensor>{}));
}

TEST_CASE("a message of several tensors of a device is one send where the transport packs") {
  auto world = make_local_world(2);
  PackingTransport first(std::move(world[0])), second(std::move(world[1]));
  std::mt19937_64 random(5);
  Outbox outbox(first, 10, 100);
  std::vector<std::vector<at::Tensor>> sent;
  std::vector<std::vector<MessagePart>> parts;
  int64_t bytes = 0, sends = 0;
  for (int i = 0; i < 40; ++i) {
    // Now and then a message of the host's, and one with a tensor that is not contiguous.
    auto tensors = drawn_tensors(random, i % 5 == 0 ? at::Device(at::kCPU) : fake_device());
    if (i % 7 == 0) tensors.push_back(at::rand({4, 6}).to(tensors[0].device()).t());
    for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    sends += i % 5 == 0 ? static_cast<int64_t>(tensors.size()) : 1;
    outbox.send(1, tensors);
    parts.push_back(parts_of(tensors));
    sent.push_back(std::move(tensors));
  }
  outbox.flush();
  CHECK(first.sends == sends);
  CHECK(outbox.sent_bytes() == bytes);
  std::vector<Inbox::Expected> order;
  for (const auto& message : parts) order.push_back({0, &message});
  Inbox inbox(second, 10, order, 2);
  for (const auto& message : sent) {
    const auto got = inbox.next();
    REQUIRE(got.size() == message.size());
    for (size_t t = 0; t < got.size(); ++t) CHECK(got[t].cpu().equal(message[t].cpu()));
  }
}

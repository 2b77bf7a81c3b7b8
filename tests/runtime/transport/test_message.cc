// How tensors lie in messages, and several of a device as one message.
#include <ATen/ATen.h>

#include <algorithm>
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
  int64_t expected_sends = 0;
  for (int i = 0; i < 40; ++i) {
    // Now and then a message of the host's, and one with a tensor that lies in memory otherwise than its
    // sizes say: that is said once.
    CAPTURE(i);
    auto tensors = drawn_tensors(random, i % 5 == 0 ? at::Device(at::kCPU) : fake_device());
    if (i % 7 == 0) tensors.push_back(at::rand({4, 6}).to(tensors[0].device()).t());
    const auto parts = parts_of(tensors);
    const bool announced =
        std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.dim() > 1; });
    constexpr int64_t kMessages = 3;
    expected_sends += announced + kMessages * (i % 5 == 0 ? static_cast<int64_t>(tensors.size()) : 1);
    Outbox outbox(first, 100 * i, kMessages);
    int64_t bytes = 0;
    for (int64_t k = 0; k < kMessages; ++k) {
      outbox.send(1, tensors);
      for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
    }
    Inbox inbox(second, 100 * i, std::vector<Inbox::Expected>(kMessages, {0, &parts}), 2);
    for (int64_t k = 0; k < kMessages; ++k) {
      const auto got = inbox.next();
      REQUIRE(got.size() == tensors.size());
      for (size_t t = 0; t < got.size(); ++t) {
        CHECK(got[t].cpu().equal(tensors[t].cpu()));
        CHECK(got[t].strides() == tensors[t].strides());
      }
    }
    outbox.flush();
    CHECK(outbox.sent_bytes() == bytes);
  }
  CHECK(first.sends == expected_sends);
}

TEST_CASE("tensors arrive as they lay in memory, in drawn orders, with gaps and elements of one place") {
  auto world = make_local_world(2);
  std::mt19937_64 random(6);
  const auto drawn = [&random](size_t end) { return static_cast<int64_t>(random() % end); };
  for (int64_t i = 0; i < 500; ++i) {
    std::vector<int64_t> sizes, order;
    for (int64_t d = drawn(6); d > 0; --d) {
      order.push_back(static_cast<int64_t>(sizes.size()));
      sizes.push_back(drawn(20));
      if (sizes.back() > 4) sizes.back() = 1 + sizes.back() % 4;
    }
    std::shuffle(order.begin(), order.end(), random);
    at::Tensor tensor = at::rand(sizes).permute(order);
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (drawn(6) == 0) tensor = tensor.slice(d, 0, at::nullopt, 2);
      if (drawn(6) == 0 && tensor.size(d) > 0) {
        auto expanded = tensor.sizes().vec();
        tensor = tensor.slice(d, 0, 1).expand(expanded);
      }
    }
    CAPTURE(i, sizes, order, tensor.sizes(), tensor.strides());
    // One that lies otherwise than the first is put in that one's order.
    const at::Tensor second = at::rand(tensor.sizes());
    const auto parts = parts_of({tensor});
    Outbox outbox(*world[0], 10 * i, 2);
    Inbox inbox(*world[1], 10 * i, {{0, &parts}, {0, &parts}}, 1);
    outbox.send(1, {tensor});
    outbox.send(1, {second});
    const at::Tensor clone = tensor.clone();
    for (const at::Tensor& sent : {tensor, second}) {
      const at::Tensor got = inbox.next().at(0);
      CHECK(got.equal(sent));
      CHECK(got.is_non_overlapping_and_dense());
      for (int64_t d = 0; d < got.dim() && got.numel() > 0; ++d)
        if (got.size(d) > 1) CHECK(got.stride(d) == clone.stride(d));
    }
    const at::Tensor flat = flattened(clone, memory_order(clone));
    CHECK(flat.is_contiguous());
    CHECK(flat.data_ptr() == clone.data_ptr());  // without a copy
  }
}
